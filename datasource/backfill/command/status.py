"""Where a stream is, for whoever looks after it: values, from what it has recorded last."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from enum import Enum, auto
from pathlib import Path
from typing import Any

from backfill.adapters import open_upstream, source_of
from backfill.amounts import iso
from backfill.control import Control
from backfill.counts import Counts, counted
from backfill.epoch import Epoch
from backfill.errors import BackfillError
from backfill.offset import Barrier
from backfill.options import parse
from backfill.progress import (
    Completed,
    Finished,
    InProgress,
    NotStarted,
    Phase,
    Progress,
    VnodeProgress,
    phase,
    rows_left,
)
from backfill.state_dir.control_file import read_control
from backfill.state_dir.counts_file import read_counts
from backfill.state_dir.kept_options import has_place
from backfill.state_dir.views import standing
from backfill.upstream import Bookmark
from backfill.upstream.lag import UNKNOWN, Lag


class VnodeState(Enum):
    """What is shown of a vnode; a picture of all of them has no room for how far one in progress is."""

    NOT_STARTED = auto()
    IN_PROGRESS = auto()
    COMPLETED = auto()


@dataclass(frozen=True, slots=True)
class RowsRead:
    """How far the table, or a part of it, has been read.

    `rows_left` is a guess, and `vnodes` has the state of each vnode in key order.
    """

    rows: int = 0
    rows_left: int | None = None
    vnodes: tuple[VnodeState, ...] = ()

    @property
    def vnodes_completed(self) -> int:
        return self.vnodes.count(VnodeState.COMPLETED)


@dataclass(frozen=True, slots=True)
class Status:
    """One look at a stream.

    `first` is the reading of the table for the first time; `again` what is being read again, or was last; `waiting` how
    many requests to read rows again wait. `as_of` is the moment of the state that the stream has reached, in
    microseconds since 1970. `counts` are the changes that it has passed on and held back, where that is known. `lag` is
    what the database says; `unreachable` is why it says nothing.
    """

    stream: str
    table: str
    phase: Phase
    bookmark: Bookmark = ()
    barrier: Barrier | None = None
    first: RowsRead = RowsRead()
    again: RowsRead | None = None
    waiting: int = 0
    control: Control = field(default_factory=Control)
    counts: Counts | None = None
    lag: Lag = UNKNOWN
    unreachable: str = ""
    upstream: str = ""
    key: tuple[str, ...] = ()

    @property
    def epoch(self) -> int | None:
        return None if self.barrier is None else self.barrier.epoch.number

    @property
    def as_of(self) -> int | None:
        return None if self.barrier is None else self.barrier.epoch.timestamp

    @property
    def reading(self) -> RowsRead:
        """What is being read, or was read last."""
        return self.again if self.phase == "again" and self.again is not None else self.first


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast rows are read, and about how long the rest of them will take."""

    rows_per_second: float
    seconds_left: float | None


def status(folder: Path) -> Status:
    """What the stream with this `stateDir` has recorded last; asks no database, and disturbs nobody."""
    identity, barrier = standing(folder)
    # A stream of one batch cannot be held up; what is stored may have been told to an earlier stream.
    control = read_control(folder) if has_place(identity.properties) else Control()
    counts = read_counts(folder)
    if counts is not None and counts.stream != identity.stream_id:
        counts = None
    of = Status(
        identity.stream_id,
        identity.table,
        "starting",
        identity.properties,
        control=control,
        counts=counts,
        upstream=identity.upstream,
        key=tuple(identity.key.names),
    )
    return of if barrier is None else _at(of, barrier)


def _at(of: Status, barrier: Barrier) -> Status:
    waiting = of.control.pending(of.stream, barrier.taken_up)
    again = barrier.again if waiting.stop is None else None
    return replace(
        of,
        bookmark=barrier.bookmark,  # It has what was noted since the stream began, such as another timeline.
        phase=phase(barrier.progress, again),
        barrier=barrier,
        first=_reading(barrier.progress),
        again=None if again is None else _reading(again.progress),
        waiting=len(waiting.to_read),
    )


def _reading(progress: Progress) -> RowsRead:
    if isinstance(progress, Finished):
        states = (VnodeState.COMPLETED,) * progress.vnode_count
    else:
        states = tuple(_state(item) for _, item in progress.per_vnode())
    return RowsRead(progress.row_count, rows_left(progress), states)


def _state(progress: VnodeProgress) -> VnodeState:
    match progress:
        case Completed():
            return VnodeState.COMPLETED
        case InProgress():
            return VnodeState.IN_PROGRESS
        case NotStarted():
            return VnodeState.NOT_STARTED


def lag_of(of: Status, url: str, user: str) -> tuple[Lag, str]:
    """What the database says of the stream's place in its log; or UNKNOWN, and why. Tried once.

    Raises OptionsError where `url` is no URL.
    """
    source = source_of(of.upstream, of.table, of.key, url=url, user=user)
    options = parse({**source, "stateDir": "/stateDir"})  # As for a stream, so that the primary is asked.
    if not has_place(of.bookmark):
        return UNKNOWN, ""  # There is nothing that it could be behind.
    try:
        with closing(open_upstream(options, patience=0.0)) as upstream:
            return upstream.lag_of(of.bookmark, _complete_epoch(of)), ""
    except BackfillError as error:
        return UNKNOWN, error.message


def _complete_epoch(of: Status) -> Epoch | None:
    """The epoch that the stream stands at, with the last moment until which it is known to be complete."""
    if of.barrier is None:
        return None
    epoch = of.barrier.epoch
    return replace(epoch, timestamp=max(epoch.timestamp, 0 if of.counts is None else of.counts.complete_until))


def as_json(of: Status, at: Pace | None) -> dict[str, Any]:
    """The status for programs: the names are those of the view `summary` and of Spark's progress."""
    return {
        "stream": of.stream,
        "table": of.table,
        "phase": of.phase,
        "paused": of.control.paused,
        "max_rows": of.control.max_rows,
        "epoch": of.epoch,
        "as_of": None if of.as_of is None else iso(of.as_of),
        "snapshot_rows": of.first.rows,
        **({} if of.first.rows_left is None else {"snapshot_rows_left": of.first.rows_left}),
        "vnodes": len(of.first.vnodes),
        "vnodes_completed": of.first.vnodes_completed,
        "vnodes_in_progress": of.first.vnodes.count(VnodeState.IN_PROGRESS),
        **(_again_as_json(of.again) if of.again is not None else {}),
        "requests_waiting": of.waiting,
        **({} if at is None else asdict(at)),
        **({} if of.counts is None else counted(of.counts)),
        **of.lag.figures(),
        **({"unreachable": of.unreachable} if of.unreachable else {}),
    }


def _again_as_json(again: RowsRead) -> dict[str, int]:
    return {
        "again_rows": again.rows,
        "again_vnodes": len(again.vnodes),
        "again_vnodes_completed": again.vnodes_completed,
    }
