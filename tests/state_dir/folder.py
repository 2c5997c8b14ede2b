"""A state directory over any number of processes of a stream, and stages that the stream may have reached."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from backfill.epoch import Epoch
from backfill.offset import Barrier
from backfill.options import LastRowsOptions, OnExistingState, StartupMode, parse
from backfill.progress import Completed, Finished, Frontier, InProgress, Progress
from backfill.state_dir.record import NamedStream, Record
from backfill.upstream import Bookmark, Identity
from backfill_state import ProgressStore
from tests.simulator.database import Database
from tests.simulator.upstream import Server, SimulatedUpstream

START = Frontier.at_start((("1", "1"), ("2", "2")))
MIDDLE = START.advanced({0: Completed(5), 1: InProgress(("1", "9"), 2)})
DONE = MIDDLE.advanced({1: Completed(4), 2: Completed(0)})
OVER = Finished(3, 9)

OPTIONS = parse({"url": "dbname=shop", "dbtable": "t"}).stream


class Upstream(SimulatedUpstream):
    """An upstream of a table with a given identity; keeps the bookmarks that were detached."""

    def __init__(self, system: str = "system", table_id: str = "1", slot: str = "slot") -> None:
        super().__init__(Server(Database()))
        self.which = Identity(system, "public.t", table_id)
        self.slot = slot
        self.named = ""
        self.detached: list[Bookmark] = []

    def identity(self) -> Identity:
        return self.which

    def bookmark(self, stream: str) -> Bookmark:
        return (("slot", self.named or f"{self.slot}_{stream}"),)

    def detach(self, bookmark: Bookmark) -> tuple[str, ...]:
        self.detached.append(bookmark)
        return ()


@dataclass
class Folder:
    """A state directory over any number of processes, in the test's own time."""

    open: Callable[[], AbstractContextManager[ProgressStore]]
    error: Exception | None = None
    now: float = 100.0
    opened: int = 0
    forgotten: list[str] = field(default_factory=list)
    upstream: Upstream = field(default_factory=Upstream)

    @contextmanager
    def _open(self) -> Iterator[ProgressStore]:
        self.opened += 1
        if self.error is not None:
            raise self.error
        with self.open() as store:
            yield store

    def process(
        self,
        on_existing: OnExistingState = OnExistingState.FAIL,
        *,
        upstream: Upstream | None = None,
        mode: StartupMode = StartupMode.INITIAL,
        last_rows: LastRowsOptions | None = None,
    ) -> Record:
        options = replace(OPTIONS, on_existing_state=on_existing, startup_mode=mode, last_rows=last_rows)
        upstream = upstream or self.upstream
        return Record(upstream, self._open, options, clock=lambda: self.now)

    def begin(self, record: Record) -> NamedStream:
        named = record.begin(self.forgotten.append)
        assert isinstance(named, NamedStream)
        return named

    def begun(self, on_existing: OnExistingState = OnExistingState.FAIL) -> tuple[Record, NamedStream]:
        record = self.process(on_existing)
        return record, self.begin(record)

    def recorded(self, number: int, progress: Progress = MIDDLE) -> Barrier:
        """Takes a stream to this barrier, in a process that ends after it; returns the barrier."""
        record, named = self.begun()
        record.keep_bounds((("1", "1"), ("2", "2")))
        barrier = barrier_of(named, number, progress)
        assert record.commit(barrier)
        return barrier

    def stored_rows(self) -> dict[int, tuple[Any, ...]]:
        """Returns what the table `backfill_progress` says of each vnode: position, whether finished, number of rows."""
        with self.open() as store:
            rows = zip(*(column.to_pylist() for column in store.progress().columns), strict=True)
            return {row[0]: (None if row[1] is None else (row[1], row[2]), row[3], row[4]) for row in rows}

    def epoch(self) -> int | None:
        with self.open() as store:
            return store.epoch()


ROWS_IN_THE_MIDDLE = {0: (None, True, 5), 1: ((1, 9), False, 2), 2: (None, False, 0)}
ROWS_WHEN_DONE = {0: (None, True, 5), 1: (None, True, 4), 2: (None, True, 0)}
"""What `Folder.told` gives at `MIDDLE` and `DONE`."""


def barrier_of(named: NamedStream, number: int, progress: Progress) -> Barrier:
    return Barrier(named.stream, named.bookmark, Epoch(number, f"p{number}", number, number), progress)


def adopt(record: Record, barrier: Barrier, *, order_matters: bool = True) -> Bookmark:
    """Has the process of `record` go on from this barrier; returns the bookmark."""
    found, bookmark = record.checked(barrier, order_matters=order_matters)
    record.adopt(barrier, found, bookmark)
    return bookmark
