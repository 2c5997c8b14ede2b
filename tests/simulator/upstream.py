"""The simulated database behind the `Upstream` contract."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from backfill.changes import DELETE, INSERT, OLD_KEY, OLD_NONE, OLD_ROW, UPDATE, changes_schema
from backfill.epoch import Epoch
from backfill.errors import DataLossError, SnapshotGoneError
from backfill.plan import Extent, Request
from backfill.upstream import Bookmark, Identity, Pin, Step, TableSchema, TableSize
from backfill.vnode import Coverage, Key, KeyRange
from tests.simulator.database import Change, Commit, Database, Row, rank

COLUMNS = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("v", pa.string())])
TABLE = TableSchema(columns=COLUMNS, output=("a", "b", "v"), key=("a", "b"))


def _text(row: Row) -> Key:
    return (str(row[0]), str(row[1]))


def _rank(key: Key) -> tuple[int, int]:
    return rank((int(key[0]), int(key[1])))


def _inside(key: Key, item: KeyRange) -> bool:
    at = _rank(key)
    return (item.after is None or at > _rank(item.after)) and (item.upto is None or at <= _rank(item.upto))


def position(lsn: int, hidden: frozenset[int]) -> str:
    return f"{lsn} {','.join(map(str, sorted(hidden)))}"


def _parse(text: str) -> tuple[int, frozenset[int]]:
    lsn, _, hidden = text.partition(" ")
    return int(lsn), frozenset(int(part) for part in hidden.split(",") if part)


def _shows(text: str, entry_lsn: int) -> bool:
    lsn, hidden = _parse(text)
    return entry_lsn < lsn and entry_lsn not in hidden


class SimulatedUpstream:
    """One process's view of the database; what it holds in memory dies with it."""

    name = "simulated"

    def __init__(self, database: Database, pins: dict[str, str], *, full_identity: bool) -> None:
        self._database = database
        self._pins = pins
        self._full = full_identity

    def schema(self) -> TableSchema:
        return TABLE

    def reader(self) -> SimulatedReader:
        return SimulatedReader(self._database, self._pins)

    def identity(self) -> Identity:
        return Identity("system", "public.t", "1")

    def bookmark(self, stream: str) -> Bookmark:
        return (("slot", f"slot_{stream}"),)

    def attach(self, bookmark: Bookmark, after: Epoch | None) -> None:
        if after is not None and self._database.acknowledged > _parse(after.position)[0]:
            raise DataLossError("acknowledged beyond the checkpoint")

    def detach(self, bookmark: Bookmark) -> None: ...

    def bounds(self, vnodes: int) -> tuple[Key, ...]:
        keys = sorted((_text(row) for row in self._visible().values()), key=_rank)
        picked = {keys[len(keys) * cut // vnodes] for cut in range(1, vnodes)} if keys else set()
        return tuple(sorted(picked, key=_rank))

    def size(self) -> TableSize:
        return TableSize(max(1, len(self._database.initial)), 40)

    def typed(self, keys: Sequence[Key]) -> pa.RecordBatch:
        columns = [pa.array([int(key[at]) for key in keys], pa.int64()) for at in (0, 1)]
        return pa.RecordBatch.from_arrays(columns, names=["a", "b"])

    def present(self) -> str:
        return position(self._database.lsn, self._database.hidden())

    def reached(self, epoch: Epoch, position: str) -> bool:
        lsn, hidden = _parse(epoch.position)
        other_lsn, other_hidden = _parse(position)
        return all(
            entry < lsn and entry not in hidden for entry in range(1, other_lsn) if entry not in other_hidden
        )

    def next_epoch(self, after: Epoch | None, *, snapshot: bool, max_changes: int, until: str | None) -> Step:
        self._pins.clear()
        lsn, hidden = _parse(until or self.present())
        if not snapshot:
            hidden = frozenset()
        new = self._between(after.position if after else None, position(lsn, hidden))
        cut = self._cut(new, max_changes) if after is not None else None
        if cut is not None and after is not None:
            # Never before what `after` shows already: a hidden commit may stand far back in the log.
            lsn = max(cut, _parse(after.position)[0])
        if not snapshot and after is not None and not new:
            return Step(after, None)
        number = after.number + 1 if after else 1
        epoch = Epoch(number, position(lsn, frozenset(h for h in hidden if h < lsn)), lsn, number * 1_000_000)
        if not snapshot or cut is not None:
            return Step(epoch, None)
        return Step(epoch, self._pinned(epoch))

    @staticmethod
    def _cut(new: list[Commit], max_changes: int) -> int | None:
        taken = 0
        for index, entry in enumerate(new):
            taken += len(entry.changes)
            if taken >= max_changes and index + 1 < len(new):
                return entry.lsn + 1
        return None

    def _pinned(self, epoch: Epoch) -> Pin:
        token = f"pin-{epoch.number}-{self._database.lsn}-{len(self._database.hidden())}"
        self._pins[token] = epoch.position
        return Pin(epoch, token)

    def repin(self, after: Epoch) -> Pin:
        self._pins.clear()
        return self._pinned(Epoch(after.number, self.present(), self._database.lsn, after.timestamp))

    def release(self, pin: Pin) -> None:
        self._pins.pop(pin.token, None)

    def measure(self, requests: Sequence[Request]) -> tuple[Extent, ...]:
        (current,) = self._pins.values()
        rows = sorted((_text(row) for row in self._database.state(*_parse(current)).values()), key=_rank)
        result = []
        for request in requests:
            inside = [key for key in rows if _inside(key, request.range)]
            full = len(inside) > request.limit
            result.append(Extent(request.limit, inside[request.limit - 1]) if full else Extent(len(inside), None))
        return tuple(result)

    def changes(self, after: Epoch | None, upto: Epoch) -> Iterator[pa.RecordBatch]:
        for entry in self._between(after.position if after else None, upto.position):
            assert entry.lsn >= self._database.acknowledged, "these changes have been acknowledged"
            yield self._batch(entry)

    def _between(self, after: str | None, upto: str) -> list[Commit]:
        return [
            entry
            for entry in self._database.log
            if _shows(upto, entry.lsn) and not (after and _shows(after, entry.lsn))
        ]

    def _batch(self, entry: Commit) -> pa.RecordBatch:
        records = [self._record(entry, change) for change in entry.changes]
        return pa.RecordBatch.from_pylist(records, schema=changes_schema(COLUMNS))

    def _record(self, entry: Commit, change: Change) -> dict[str, Any]:
        old, new = change.old, change.new
        moves = old is not None and new is not None and old[:2] != new[:2]
        known = OLD_NONE
        if old is not None and (self._full or new is None or moves):
            known = OLD_ROW if self._full else OLD_KEY
        return {
            "op": INSERT if old is None else DELETE if new is None else UPDATE,
            "version": entry.lsn,
            "timestamp": datetime.datetime.fromtimestamp(entry.lsn, datetime.UTC),
            "commit_id": entry.lsn,
            "old_kind": known,
            "new": _struct(new),
            "old": None if known == OLD_NONE else _struct(old, key_only=known == OLD_KEY),
            "unchanged": None,
        }

    def shown(self, position: str, changes: pa.RecordBatch) -> pa.BooleanArray:
        return pa.array([_shows(position, lsn) for lsn in changes["version"].to_pylist()], pa.bool_())

    def covered(self, keys: pa.RecordBatch, coverage: Coverage) -> pa.BooleanArray:
        found = [
            any(_inside((str(a), str(b)), item) for item in coverage)
            for a, b in zip(keys["a"].to_pylist(), keys["b"].to_pylist(), strict=True)
        ]
        return pa.array(found, pa.bool_())

    def acknowledge(self, epoch: Epoch) -> None:
        lsn, hidden = _parse(epoch.position)
        self._database.acknowledged = max(self._database.acknowledged, min([lsn, *hidden]))

    def lag(self) -> dict[str, int]:
        return {"lag_bytes": 0}

    def close(self) -> None:
        self._pins.clear()

    def _visible(self) -> dict[tuple[int, int], Row]:
        return self._database.state(self._database.lsn, self._database.hidden())


class SimulatedReader:
    """Reads a pinned state, in batches of two rows."""

    def __init__(self, database: Database, pins: dict[str, str]) -> None:
        self._database = database
        self._pins = pins

    def read(self, token: str, ranges: Sequence[KeyRange]) -> Iterator[pa.RecordBatch]:
        if token not in self._pins:
            raise SnapshotGoneError("the pin has been released")
        rows = sorted(self._database.state(*_parse(self._pins[token])).values(), key=lambda row: rank(row[:2]))
        found = [_struct(row) for item in ranges for row in rows if _inside(_text(row), item)]
        for at in range(0, len(found), 2):
            yield pa.RecordBatch.from_pylist(found[at : at + 2], schema=COLUMNS)


def _struct(row: Row | None, *, key_only: bool = False) -> dict[str, Any] | None:
    if row is None:
        return None
    return {"a": row[0], "b": row[1], "v": None if key_only else row[2]}
