"""The simulated database behind the `Upstream` contract."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from backfill.epoch import Epoch
from backfill.errors import DataLossError, KeyTextError, OptionsError, SnapshotGoneError
from backfill.plan import Extent, Measure
from backfill.upstream import EARLIEST, LATEST, Bookmark, Identity, Pin, Step, TableSchema, TableSize
from backfill.upstream.added import NOTHING_ADDED, Added
from backfill.upstream.lag import UNKNOWN, Lag
from backfill.vnode import WHOLE_TABLE, Coverage, Key, KeyRange
from tests.simulator.database import (
    Commit,
    Database,
    Row,
    Table,
    View,
    inside,
    key_text,
    rank,
)
from tests.simulator.database import Key as RowKey
from tests.simulator.log import COLUMNS, columns_of, logged

TABLE = TableSchema(name="t", columns=COLUMNS, output=("a", "b", "v"), key=("a", "b"))
SLOT: Final = "slot"


@dataclass(slots=True)
class Server:
    """What outlives the processes that talk to the database, and the pins, which do not outlive theirs."""

    database: Database
    full_identity: bool = False
    leaves_out: bool = False
    """Whether the log leaves out of an update a value that it left as it was."""

    batch_rows: int = 5
    """How many rows a batch of changes has at most; a commit may be spread over several batches."""

    losses: int = 0
    """How often the session that holds a pin is lost before anything is measured in it."""

    looked_up: dict[RowKey, View] = field(default_factory=dict)
    """The keys whose rows were looked up, each with the latest state at which that was."""

    pins: dict[str, View] | None = None
    _pinned: int = 0

    def messages_of(self, commits: Sequence[Commit]) -> Iterator[pa.RecordBatch]:
        """Yields the changes of these commits as the log has them."""
        changes = [(entry, change) for entry in commits for change in entry.changes]
        for at in range(0, len(changes), self.batch_rows):
            some = changes[at : at + self.batch_rows]
            yield logged(some, full_identity=self.full_identity, leaves_out=self.leaves_out)

    def pin(self, view: View) -> str:
        """Pins this state, in place of the one before: an adapter promises one pin at a time."""
        self._pinned += 1
        token = f"pin-{self._pinned}"
        self.pins = {token: view}
        return token

    def pinned(self, token: str) -> View:
        if self.pins is None or token not in self.pins:
            raise SnapshotGoneError("the pin has been released")
        return self.pins[token]


class SimulatedUpstream:
    """One process's view of the server; what it holds in memory dies with it."""

    name = "simulated"

    def __init__(self, server: Server, slot: str = "") -> None:
        self._server = server
        self._database = server.database
        self._slot = slot

    def schema(self) -> TableSchema:
        return TABLE

    def reader(self) -> SimulatedReader:
        return SimulatedReader(self._server)

    def span(self, starting: str, ending: str) -> SimulatedChangeReader:
        begin = self._database.slots[self._slot]
        after, upto = (_position(text, {EARLIEST: begin, LATEST: self._database.lsn}) for text in (starting, ending))
        if not after <= upto <= self._database.lsn:
            raise OptionsError(f"{after} lies after {upto}, or this after the present")
        if begin > after:
            raise DataLossError(f"the changes after {after} are gone")
        return SimulatedChangeReader(self._server, self._slot, str(after), str(upto))

    def identity(self) -> Identity:
        return Identity("system", "public.t", "1")

    def bookmark(self, stream: str) -> Bookmark:
        return ((SLOT, f"slot_{stream}"),)

    def attach(self, bookmark: Bookmark, after: Epoch | None, ahead: Collection[str] = ()) -> Bookmark:
        self._slot = dict(bookmark)[SLOT]
        begin = self._database.slots.get(self._slot)
        if after is None:
            now = self._database.now
            self._database.slots.setdefault(self._slot, min([now.lsn, *now.hidden]))
        elif begin is None or begin > _first_unshown(View.parse(after.position)):
            raise DataLossError("the changes after the checkpoint are gone")
        if any(View.parse(position).lsn > self._database.now.lsn for position in ahead):
            raise DataLossError("the database has not come as far as the stream")
        return bookmark

    def require_same_order(self, bookmark: Bookmark) -> None:
        """Does nothing: the order of keys is always the server's."""

    def require_same_key(self, bookmark: Bookmark) -> None:
        """Does nothing: the table has but one key."""

    def added(self) -> Added:
        return NOTHING_ADDED

    def reordered(self, bookmark: Bookmark) -> Bookmark:
        return bookmark

    def is_own(self, bookmark: Bookmark, stream: str) -> bool:
        return stream in dict(bookmark)[SLOT]

    def detach(self, bookmark: Bookmark) -> tuple[str, ...]:
        self._database.slots.pop(dict(bookmark)[SLOT], None)
        return (f"slot {dict(bookmark)[SLOT]}",)

    def bounds(self, vnodes: int, within: KeyRange = WHOLE_TABLE) -> tuple[Key, ...]:
        """Returns bounds; some are keys without a row, as after deletes meanwhile, so that some vnodes are empty."""
        gone = {(digit, digit) for digit in range(0, 12, 3)}
        keys = sorted((key for key in {*self._visible().by_key, *gone} if inside(key, within)), key=rank)
        places = sorted({len(keys) * cut // vnodes for cut in range(1, vnodes)}) if keys else []
        return tuple(key_text(keys[at]) for at in places)

    def range_of(self, first: Key | None, last: Key | None) -> KeyRange:
        begin, end = (None if key is None else _key(key) for key in (first, last))
        before = [] if begin is None else [row[:2] for row in self._visible().rows if rank(row[:2]) < rank(begin)]
        return KeyRange(key_text(before[-1]) if before else None, None if end is None else key_text(end))

    def size(self) -> TableSize:
        return TableSize(max(1, len(self._database.initial)), 40)

    def typed(self, keys: Sequence[Key]) -> pa.RecordBatch:
        columns = [pa.array([int(key[at]) for key in keys], pa.int64()) for at in (0, 1)]
        return pa.RecordBatch.from_arrays(columns, names=["a", "b"])

    def present(self) -> str:
        return str(self._database.now)

    def reached(self, epoch: Epoch, position: str) -> bool:
        return _shows_all(View.parse(epoch.position), View.parse(position))

    def has_gap_after(self, epoch: Epoch) -> bool:  # noqa: ARG002 - the same for each
        """Returns False: this upstream never goes on without changes that it has lost."""
        return False

    def snapshot_epoch(self, after: Epoch | None, *, max_changes: int) -> Step:
        return self._next_step(after, self._database.now, max_changes, snapshot=True)

    def log_epoch(self, after: Epoch | None, *, max_changes: int, until: str | None) -> Step:
        upto = View.parse(until) if until else self._database.now
        return self._next_step(after, upto, max_changes, snapshot=False)

    def _next_step(self, after: Epoch | None, upto: View, max_changes: int, *, snapshot: bool) -> Step:
        self._server.pins = None
        if after is not None and not _shows_all(upto, View.parse(after.position)):
            snapshot = False
        if not snapshot:
            # No snapshot row is read at this step, so it does not matter who sees a commit that is in the log.
            upto = View(upto.lsn)
        if after is None:
            return self._step(1, upto, pinned=snapshot)
        seen = View.parse(after.position)
        new = self._database.between(seen, upto)
        cut = _cut(new, max_changes)
        if cut is not None:
            # Do not cut before what `after` shows already: a commit that was hidden may stand far back in the log.
            lsn = max(cut, seen.lsn)
            upto = View(lsn, frozenset(hidden for hidden in upto.hidden if hidden < lsn))
        if not snapshot and not new:
            return Step(after, None)
        return self._step(after.number + 1, upto, pinned=snapshot and cut is None)

    def held_epoch(self, after: Epoch | None, *, max_changes: int) -> Step:
        now = self._database.now
        if after is not None and not _shows_all(now, View.parse(after.position)):
            return self.log_epoch(after, max_changes=max_changes, until=None)
        if after is not None and not self._database.between(View.parse(after.position), now):
            self._server.pins = None
            return Step(after, None)
        found = self.snapshot_epoch(after, max_changes=max_changes)
        self._server.pins = None
        return Step(found.epoch, None)

    def _step(self, number: int, view: View, *, pinned: bool) -> Step:
        epoch = Epoch(number, str(view), view.lsn, number * 1_000_000)
        return Step(epoch, Pin(epoch, self._server.pin(view)) if pinned else None)

    def repin(self, after: Epoch) -> Pin:
        self._wait_for_readers_to_see(View.parse(after.position))
        now = self._database.now
        return Pin(Epoch(after.number, str(now), now.lsn, after.timestamp), self._server.pin(now))

    def _wait_for_readers_to_see(self, view: View) -> None:
        for entry in self._database.hidden:
            if view.shows(entry.lsn):
                self._database.reveal(entry)

    def release(self, pin: Pin) -> None:
        if self._server.pins is not None:
            self._server.pins.pop(pin.token, None)

    def lookup(self, pin: Pin, keys: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        view = self._server.pinned(pin.token)
        asked: list[Any] = list(zip(keys["a"].to_pylist(), keys["b"].to_pylist(), strict=True))
        self._server.looked_up |= dict.fromkeys(asked, view)
        by_key = self._database.table(view).by_key
        found = [by_key[key] for key in asked if key in by_key]
        yield pa.RecordBatch.from_arrays(columns_of(found), schema=COLUMNS)

    def measure(self, pin: Pin, requests: Sequence[Measure]) -> tuple[Extent, ...]:
        if self._server.losses:
            self._server.losses -= 1
            raise SnapshotGoneError("the session was lost, and the pin with it")
        table = self._database.table(self._server.pinned(pin.token))
        return tuple(_extent(table.within(request.range), request.limit) for request in requests)

    def changes(self, after: Epoch, upto: Epoch) -> Iterator[pa.RecordBatch]:
        commits = self._database.between(View.parse(after.position), View.parse(upto.position))
        begin = self._database.slots[self._slot]
        assert all(entry.lsn >= begin for entry in commits), "these changes have been acknowledged"
        for batch in self._server.messages_of(commits):
            yield batch
            yield batch.slice(0, 0)  # An empty batch, as where much of a log is about other tables.

    def shown(self, position: str, changes: pa.RecordBatch) -> pa.BooleanArray:
        view = View.parse(position)
        return pa.array([view.shows(lsn) for lsn in changes["version"].to_numpy().tolist()], pa.bool_())

    def covered(self, keys: pa.RecordBatch, coverage: Coverage) -> pa.BooleanArray:
        pairs = zip(keys["a"].to_numpy().tolist(), keys["b"].to_numpy().tolist(), strict=True)
        return pa.array([any(inside(key, item) for item in coverage) for key in pairs], pa.bool_())

    def acknowledge(self, epoch: Epoch) -> None:
        begin = _first_unshown(View.parse(epoch.position))
        self._database.slots[self._slot] = max(self._database.slots[self._slot], begin)

    def lag(self, epoch: Epoch) -> Lag:  # noqa: ARG002 - none is behind
        return Lag(lag_bytes=0) if self._slot in self._database.slots else UNKNOWN

    def lag_of(self, bookmark: Bookmark, epoch: Epoch | None) -> Lag:
        if epoch is None:
            return UNKNOWN
        if dict(bookmark)[SLOT] not in self._database.slots:
            raise DataLossError("the changes after the stream's epoch are gone")
        return Lag(lag_bytes=0)

    def close(self) -> None:
        self._server.pins = None

    def _visible(self) -> Table:
        return self._database.table(self._database.now)


class SimulatedReader:
    """Reads a pinned state or the present one, in batches of two rows; it reads to the end what it has begun."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def read(self, token: str, ranges: Sequence[KeyRange]) -> Iterator[pa.RecordBatch]:
        return self._rows(self._server.pinned(token), ranges)

    def scan(self, ranges: Sequence[KeyRange]) -> Iterator[pa.RecordBatch]:
        return self._rows(self._server.database.now, ranges)

    def _rows(self, view: View, ranges: Sequence[KeyRange]) -> Iterator[pa.RecordBatch]:
        table = self._server.database.table(view)
        found = [row for item in ranges for row in table.within(item)]
        for at in range(0, len(found), 2):
            yield pa.RecordBatch.from_arrays(columns_of(found[at : at + 2]), schema=COLUMNS)


@dataclass(frozen=True, slots=True)
class SimulatedChangeReader:
    """Reads the commits from one place in the log to another, whether or not readers see them."""

    server: Server
    slot: str
    after: str
    upto: str

    def read(self) -> Iterator[pa.RecordBatch]:
        database = self.server.database
        begin = database.slots.get(self.slot)
        if begin is None or begin > int(self.after):
            raise DataLossError(f"the changes after {self.after} are gone")
        yield from self.server.messages_of(database.between(View.parse(self.after), View.parse(self.upto)))


def _position(text: str, named: dict[str, int]) -> int:
    if text not in named and not text.isdigit():
        raise OptionsError(f"{text!r} is no position")
    return named[text] if text in named else int(text)


def _key(text: Key) -> tuple[int, int]:
    try:
        a, b = text
        return int(a), int(b)
    except ValueError:
        raise KeyTextError("a value does not fit the table's key (a, b)") from None


def _shows_all(have: View, want: View) -> bool:
    return all(have.shows(lsn) for lsn in range(1, want.lsn) if want.shows(lsn))


def _first_unshown(view: View) -> int:
    return min([view.lsn, *view.hidden])


def _cut(new: list[Commit], max_changes: int) -> int | None:
    """Returns the LSN to stop before, so that about `max_changes` changes are taken; None where that is all of them."""
    taken = 0
    for entry in new[:-1]:
        taken += len(entry.changes)
        if taken >= max_changes:
            return entry.lsn + 1
    return None


def _extent(rows: Sequence[Row], limit: int) -> Extent:
    return Extent(limit, key_text(rows[limit - 1][:2])) if len(rows) > limit else Extent(len(rows), None)
