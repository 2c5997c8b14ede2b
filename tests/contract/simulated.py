"""The simulator as a laboratory."""

from __future__ import annotations

from collections.abc import Sequence

from backfill.upstream import Bookmark
from tests.contract.laboratory import KeyValue, Rows, Write
from tests.simulator.database import Change, Commit, Database, Key, rank
from tests.simulator.upstream import SLOT, Server, SimulatedUpstream


class Transaction:
    """Writes that have not happened yet, or that are in the log while nobody sees them."""

    def __init__(self, laboratory: SimulatedLaboratory, writes: tuple[Write, ...], logged: Commit | None) -> None:
        self._laboratory = laboratory
        self._writes = writes
        self._logged = logged

    def commit(self) -> None:
        if self._logged is None:
            self._laboratory.write(*self._writes)
        else:
            self._laboratory.database.reveal(self._logged)

    def roll_back(self) -> None:
        assert self._logged is None


class SimulatedLaboratory:
    def __init__(self, server: Server) -> None:
        self.server = server
        self.database: Database = server.database
        ascending = sorted(((a, b) for a in range(-3, 4) for b in range(7)), key=rank)
        self.keys: Sequence[KeyValue] = ascending
        self._opened: SimulatedUpstream | None = None

    def open(self) -> SimulatedUpstream:
        if self._opened is not None:
            self._opened.close()
        self._opened = SimulatedUpstream(self.server)
        return self._opened

    def reading(self, bookmark: Bookmark) -> SimulatedUpstream:
        return SimulatedUpstream(self.server, dict(bookmark)[SLOT])

    def write(self, *writes: Write) -> None:
        self._log(writes, visible=True)

    def hold(self, *writes: Write) -> Transaction:
        return Transaction(self, writes, None)

    def commit_unseen(self, *writes: Write) -> Transaction:
        return Transaction(self, writes, self._log(writes, visible=False))

    def rows(self) -> Rows:
        return {row[:2]: row[2] for row in self.database.table(self.database.now).rows}

    def lose_changes(self, bookmark: Bookmark) -> None:
        self.database.slots.pop(dict(bookmark)[SLOT], None)

    def _log(self, writes: tuple[Write, ...], *, visible: bool) -> Commit:
        rows = self.database.latest()
        changes = []
        for write in writes:
            old = None if write.old is None else rows.pop(_key(write.old))
            new = None if write.key is None else (*_key(write.key), write.value)
            if new is not None:
                assert new[:2] not in rows
                rows[new[:2]] = new
            changes.append(Change(old, new))
        return self.database.commit(changes, visible=visible)


def _key(key: KeyValue) -> Key:
    return (key[0], key[1])
