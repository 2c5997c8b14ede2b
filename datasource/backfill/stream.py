"""Drives one stream: from an offset to the next, and from two offsets to what has to be read.

This is the algorithm of the package docstring with its I/O, free of Spark. It keeps nothing that a new process would
miss: what is in memory is a copy of the offset, the state store or the staging directory, or can be asked for again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from backfill.advance import UNLIMITED, advance, grown
from backfill.again import going_on, next_up
from backfill.attachment import Attachment
from backfill.batch import Batch, cut
from backfill.control import Control
from backfill.counts import Counting, iso
from backfill.epoch import Epoch
from backfill.errors import SnapshotGoneError
from backfill.handoff import Part, SnapshotPart
from backfill.offset import Ahead, Barrier, Nothing, Offset
from backfill.options import OnTruncate, StartupMode, StreamOptions
from backfill.plan import pieces
from backfill.progress import Again, Finished, Frontier, Progress, figures, phase, rows_left, settled
from backfill.record import Record
from backfill.release import Release, Watch, in_background
from backfill.rows import RowFormat
from backfill.staging import Staging
from backfill.upsert import LastRows
from backfill.upstream import Pin, SnapshotReader, Step, TableSchema, Upstream

logger = logging.getLogger("backfill")

MOST_LOST: Final = 10
"""How many states in a row may be lost before a batch is planned; taking one waits for the database by itself."""

ReadControl: TypeAlias = Callable[[], Control]
"""What the stream has been told by now."""


@dataclass(frozen=True, slots=True)
class _Standing:
    """Where a stream is: its epoch, None before the first barrier, its own progress, and what it is to take again."""

    epoch: Epoch | None
    progress: Progress
    again: Again | None

    @property
    def cursor(self) -> Progress:
        """What the next batch moves: how far something is taken again, if anything is, else the stream's progress."""
        taking = None if self.again is None else self.again.frontier
        return self.progress if taking is None else taking

    def moved(self, cursor: Progress) -> _Standing:
        if self.again is not None and self.again.frontier is not None:
            return replace(self, again=replace(self.again, progress=cursor))
        return replace(self, progress=cursor)


class Stream:
    """One stream, as Spark's driver sees it; not thread-safe."""

    def __init__(
        self,
        upstream: Upstream,
        record: Record,
        staging: Staging,
        options: StreamOptions,
        *,
        open_last_rows: Callable[[RowFormat], LastRows] | None = None,
        watch: Watch = in_background,
        read_control: ReadControl = Control,
        counting: Counting | None = None,
    ) -> None:
        self._upstream = upstream
        self._attachment = Attachment(upstream, record, staging, options, keeps_last_rows=open_last_rows is not None)
        self._options = options
        self._pin: Pin | None = None
        self._until: str | None = None
        self._worked_off = 0
        self._release = Release(upstream, watch)
        self._reported: tuple[Progress, Again | None] | None = None
        self._read_control = read_control
        self._said_never = False
        self._refused: set[str] = set()
        self._control = Control()
        self._open_last_rows = open_last_rows
        self._last_rows: LastRows | None = None
        self._counting = counting or Counting()
        self._rests = False

    @property
    def table(self) -> TableSchema:
        return self._attachment.table

    @property
    def rows(self) -> RowFormat:
        return RowFormat(self.table, self._options.mark_unchanged, self._options.metadata)

    def reader(self) -> SnapshotReader:
        """What reads this stream's snapshot rows on executors."""
        return self._upstream.reader()

    def report(self) -> dict[str, int | str]:
        """Where the stream is, for whoever watches: the README has a table of the names.

        Of the batch whose end was asked for last, all but the counts of changes take it as read: its readers are
        planned only after this.
        """
        table = {"table": self._upstream.identity().table}
        if self._reported is None:
            return {**table, "phase": "starting", **self._told()}
        told = self._told() if phase(*self._reported) != "changes" or self._waits(self._reported[1]) else {}
        left = rows_left(self._reported[0])
        expected = {} if left is None else {"snapshot_rows_left": left}
        state = {} if self._last_rows is None else self._last_rows.figures()
        lag: dict[str, int | str] = {**self._upstream.lag()}
        complete_until = lag.get("complete_until")
        if isinstance(complete_until, int):
            lag["complete_until"] = iso(complete_until)
            if self._rests:
                self._counting.complete(complete_until)
        return {**table, **figures(*self._reported), **expected, **told, **self._counting.figures(), **lag, **state}

    def _told(self) -> dict[str, int | str]:
        limit = 0 if self._control.holds else self._control.max_rows
        return {} if limit is None else {"control": self._control.told(), "control_rows": limit}

    def _waits(self, again: Again | None) -> bool:
        """Whether rows are to be read again after those of `again`."""
        last = None if again is None else again.request
        return not self._why_never_again() and bool(self._control.waiting(self._attachment.stream, last))

    def stop_at_present(self) -> None:
        """From now on nothing that happens after this moment is read, except what finishing the backfill needs."""
        self._until = self._upstream.present()

    # -- from an offset to the next --------------------------------------------------------------------------------

    def latest_offset(self, start: Offset, max_rows: int | None) -> Offset:
        """Where the batch after `start` ends; `start` itself where nothing is to be read. None is no limit of rows.

        `start` has been committed: Spark asks for the next batch only then. So progress is recorded and the
        upstream is acknowledged here. Where Spark did not log the answer it asks again with the same `start`; the plan
        before, and its pin, are void then.

        While the snapshot is held only changes are read; then too `start` is returned where there are none.
        """
        end = self._next(start, max_rows)
        self._rests = end == start
        return end

    def _next(self, start: Offset, max_rows: int | None) -> Offset:
        self._control = self._read_control()
        if isinstance(start, Nothing):
            if self._control.holds and self._options.startup_mode is StartupMode.SNAPSHOT:
                return start
            base = self._begin()
        else:
            self._attachment.attach(start, start, self._control)
            self._let_go(start)
            self._attachment.settle(start)
            base = start
        stands = self._standing(base)
        if isinstance(base, Barrier) and self._is_over(stands.cursor, base.epoch):
            return self._nothing(start, base)
        ahead = self._attachment.ahead(base) if isinstance(base, Barrier) else ()
        step, moved = self._step(stands.epoch, stands.cursor, max_rows, *self._most_changes(max_rows, ahead))
        if step.epoch == stands.epoch:
            return self._nothing(start, base)
        self._prepare(stands.cursor, moved, step)
        stands = stands.moved(moved)
        self._reported = stands.progress, stands.again
        return Barrier(
            stream=self._attachment.stream,
            upstream=self._attachment.bookmark,
            epoch=step.epoch,
            progress=stands.progress,
            ahead=ahead,
            base=replace(base, base=None) if isinstance(start, Nothing) and isinstance(base, Barrier) else None,
            again=stands.again,
        )

    def _nothing(self, start: Offset, base: Barrier | Progress) -> Offset:
        """Where a batch ends that reads nothing: Spark runs the first one of a checkpoint in any case."""
        if not isinstance(base, Barrier):
            return start
        if self._until is not None:
            # The query ends here, and nobody is left to record later what was put off.
            self._attachment.keep(base, at_once=True)
        return replace(base, base=replace(base, base=None)) if isinstance(start, Nothing) else start

    def _standing(self, base: Barrier | Progress) -> _Standing:
        """Where the stream is before its next batch, with what that is to take again."""
        if not isinstance(base, Barrier):
            return _Standing(None, base, None)
        progress = settled(base.progress)
        stands = _Standing(base.epoch, progress, self._again(base, progress))
        self._reported = stands.progress, stands.again
        self._counting.begin(base.stream, base.epoch.timestamp)
        return stands

    def _most_changes(self, max_rows: int | None, ahead: tuple[Ahead, ...]) -> tuple[int, str | None]:
        """How many the next batch may read at the most, and up to where."""
        if ahead and self._options.on_truncate is OnTruncate.EMIT:
            # All the way to the states that are ahead: whether there is a truncation before them matters to the
            # changes after it, and a later batch would not know.
            return UNLIMITED, None
        return grown(max_rows or UNLIMITED, self._worked_off), self._until

    def _prepare(self, cursor: Progress, moved: Progress, step: Step) -> None:
        """Prepares the batch that takes the stream from `cursor` to `moved`."""
        self._pin = step.pin
        # A batch of this number may have been planned before: Spark did not log it, or in another checkpoint.
        staging, number = self._attachment.staging(self._attachment.stream), step.epoch.number
        staging.forget(number)
        works_off = isinstance(cursor, Frontier) and step.pin is None and not self._control.holds
        self._worked_off = self._worked_off + 1 if works_off else 0
        if isinstance(cursor, Frontier) and isinstance(moved, Frontier):
            cut(pieces(cursor, moved), staging, number, self._options.num_partitions)

    def _again(self, base: Barrier, progress: Progress) -> Again | None:
        """What is taken again in the next batch, if anything is."""
        refused = self._why_never_again()
        if refused:
            if self._control.waiting(base.stream, None) and not self._said_never:
                self._said_never = True
                logger.warning("requests to read rows again are passed over: %s", refused)
            return None
        again = going_on(base.again, self._attachment.manifest(base).given_up)
        return next_up(
            again,
            progress,
            self._control,
            stream=base.stream,
            upstream=self._upstream,
            vnodes=self._options.vnode_count,
            refused=self._refused,
        )

    def _why_never_again(self) -> str:
        if self._options.startup_mode is StartupMode.SNAPSHOT:
            return "a stream with startupMode=snapshot is one batch"
        last_rows = self._kept_rows()
        if last_rows is not None and last_rows.keeps_the_latest:
            return "with orderColumn the sink may have a later row than the table, which is not to be undone"
        return ""

    def _step(
        self, after: Epoch | None, progress: Progress, max_rows: int | None, max_changes: int, until: str | None
    ) -> tuple[Step, Progress]:
        """The state the next batch ends at, and how far it gets there.

        If the pinned state is lost before its rows have been counted, another one is taken.
        """
        snapshot = isinstance(progress, Frontier)
        if snapshot and self._control.holds:
            return self._upstream.held_epoch(after, max_changes=max_changes), progress
        lost = 0
        while True:
            step = self._upstream.next_epoch(
                after,
                snapshot=snapshot,
                max_changes=max_changes,
                until=None if snapshot else until,
            )
            if step.pin is None or not isinstance(progress, Frontier):
                return step, progress
            try:
                return step, advance(self._upstream, progress, max_rows, self._options, self._control)
            except SnapshotGoneError:
                lost += 1
                if lost == MOST_LOST:
                    raise

    def _is_over(self, progress: Progress, after: Epoch) -> bool:
        if self._options.startup_mode is StartupMode.SNAPSHOT:
            return True
        waits = isinstance(progress, Finished) or self._control.holds
        return waits and self._until is not None and self._upstream.reached(after, self._until)

    def _begin(self) -> Barrier | Progress:
        """The first batch: the stream's record is made, then its place in the change log, then the vnodes."""
        found = self._attachment.begin(self._control)
        if found is not None:
            return found
        if self._options.startup_mode is StartupMode.LATEST:
            return Finished(0, 0)
        return Frontier.at_start(self._attachment.bounds())

    def _let_go(self, start: Barrier) -> None:
        """Lets go of the state at which the batch up to `start` was read; what the sink left unread is lost then."""
        self._release.stop()
        pin, self._pin = self._pin, None
        if pin is None:
            return
        if self._kept_rows() is not None:
            with suppress(SnapshotGoneError):
                self._batch(start.stream).read_rest(start, pin)
        self._upstream.release(pin)

    # -- from two offsets to what has to be read -------------------------------------------------------------------

    def parts(self, start: Offset, end: Offset) -> tuple[Part, ...]:
        """What readers read for the batch from `start` to `end`: changes first, then snapshot rows.

        The same rows for the same offsets, also in a new process: from the change log, the staging directory and,
        for a chunk that was never staged, from a later state which is recorded with it.
        """
        if not isinstance(end, Barrier):
            return ()  # The first batch of a stream that was told to wait before it began.
        begin = end.base if isinstance(start, Nothing) else start
        self._attachment.attach(begin, end, self._control)
        if begin is not None and begin.epoch == end.epoch:
            return ()
        batch = self._batch(end.stream)
        held = self._pin
        changes = batch.changes(begin, end, held)
        self._counting.begin(end.stream, (begin or end).epoch.timestamp)
        self._counting.add(end.epoch.number, batch.tally)
        snapshot, self._pin = batch.snapshot(begin, end, held)
        if self._pin is not None:
            names = [part.name for part in snapshot if isinstance(part, SnapshotPart)]
            self._release.when_staged(self._pin, self._attachment.staging(end.stream), end.epoch.number, names)
        elif held is not None:
            self._upstream.release(held)
        return (*changes, *snapshot)

    def _batch(self, stream: str) -> Batch:
        return Batch(self._upstream, self._attachment.staging(stream), self.rows, self._options, self._kept_rows())

    def _kept_rows(self) -> LastRows | None:
        if self._last_rows is None and self._open_last_rows is not None:
            self._last_rows = self._open_last_rows(self.rows)
        return self._last_rows

    def close(self) -> None:
        """Lets go of everything, a pin too. May be called again."""
        self._release.stop()
        if self._last_rows is not None:
            self._last_rows.close()
        self._upstream.close()
