"""Drives one stream: from an offset to the next, and from two offsets to what has to be read.

This is the algorithm of the package docstring with its I/O, free of Spark. What it keeps in memory is copied from the
offset, the state store or the staging directory, or can be asked for again. The rest may begin afresh in a new process:
how many batches of changes alone came in a row, the present to stop at, and which requests have been logged.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, TypeAlias

from backfill.advance import UNLIMITED, advance, grown, limits
from backfill.again import RequestQueue
from backfill.attachment import Attachment
from backfill.chunks import Chunks, planned_manifest
from backfill.control import Control
from backfill.counts import ChangeCounter
from backfill.epoch import Epoch
from backfill.errors import SnapshotGoneError
from backfill.following import Following
from backfill.handoff import Part, SnapshotPart
from backfill.offset import Ahead, Barrier, InitialOffset, Offset
from backfill.options import OnTruncate, StartupMode, StreamOptions
from backfill.plan import pieces
from backfill.progress import Again, Finished, Frontier, Progress, figures, phase, settled
from backfill.release import Release, Watch, in_background
from backfill.rows import RowFormat
from backfill.staging import Staging
from backfill.state_dir.record import NamedStream, Record
from backfill.upstream import Pin, SnapshotReader, Step, Upstream
from backfill.upstream.lag import UNKNOWN, Lag
from backfill.upstream.noted import columns_of_last_rows
from backfill.whole_rows.last_rows import LastRows

MOST_LOST: Final = 10
"""Planning a batch fails once so many states in a row were lost. Taking one waits for the database by itself."""

ReadControl: TypeAlias = Callable[[], Control]
"""Reads what the stream has been told by now."""


@dataclass(frozen=True, slots=True)
class _Standing:
    """Where a stream is: its epoch (None before the first barrier), its own progress, and what it is to take again."""

    named: NamedStream
    epoch: Epoch | None
    progress: Progress
    again: Again | None
    needs_barrier: bool = False
    """Whether a batch must follow even without changes, because only its offset can record which columns the last rows
    have now, or that a request was answered without taking rows: a stop, or one that was passed over.
    """

    @property
    def cursor(self) -> Progress:
        """What the next batch moves: the progress of taking rows again, if some are left, else the stream's own."""
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
        counting: ChangeCounter | None = None,
    ) -> None:
        self._upstream = upstream
        self._attachment = Attachment(upstream, record, staging, options, self._require_last_rows)
        self._options = options
        self._release = Release(upstream, watch)
        self._requests = RequestQueue(upstream, options)
        self._counting = counting or ChangeCounter()
        self._open_last_rows = open_last_rows
        self._last_rows: LastRows | None = None
        self._read_control = read_control
        self._control = Control()
        self._until: str | None = None
        # Of the batch whose end was asked for last:
        self._stands: _Standing | None = None
        self._pin: Pin | None = None
        self._worked_off = 0

    @cached_property
    def rows(self) -> RowFormat:
        return RowFormat.of(self._upstream.schema(), self._options)

    def reader(self) -> SnapshotReader:
        """What reads this stream's snapshot rows on executors."""
        return self._upstream.reader()

    def report(self) -> dict[str, int | str]:
        """Where the stream is, for whoever watches; docs/operating.md has a table of the names.

        The figures take the batch whose end was asked for last as already read. Only the counts of changes do not: its
        changes are counted when its readers are planned, which is after this.
        """
        table, stands = {"table": self._upstream.identity().table}, self._stands
        if stands is None:
            return {**table, "phase": "starting", **self._control.figures()}
        waits = self._requests.has_pending(stands.named.stream, stands.again, self._control)
        follows = phase(stands.progress, stands.again) == "changes" and not waits
        control = {} if follows else self._control.figures()
        lag = self._lag(stands.epoch).figures()
        state = {} if self._last_rows is None else self._last_rows.figures()
        at = figures(stands.progress, stands.again)
        return {**table, **at, **control, **self._counting.figures(), **lag, **state}

    def _lag(self, epoch: Epoch | None) -> Lag:
        """How far the stream is behind at this epoch. A snapshot-only stream has nothing that it could be behind."""
        return UNKNOWN if epoch is None or self._options.only_snapshot else self._upstream.lag(epoch)

    def stop_at_present(self) -> None:
        """Has no changes read from now on that happen after this moment. But reading rows of the table, for the first
        time or again, takes states that are later; and with onTruncate=emit, batches go on to states at which rows were
        read ahead.
        """
        self._until = self._upstream.present()

    # -- from an offset to the next --------------------------------------------------------------------------------

    def latest_offset(self, start: Offset, max_rows: int | None) -> Offset:
        """Where the batch after `start` ends; `start` itself where nothing is to be read, but after `InitialOffset`
        always a barrier. `max_rows` is None for no limit.

        `start` has been committed: Spark asks for the next batch only then. So progress is recorded and the upstream is
        acknowledged here. Where Spark did not log the answer, it asks again with the same `start`; then the earlier
        plan and its pin are void.

        While the snapshot is held, only changes are read; where there are none, `start` is returned then too.
        """
        self._control = self._read_control()
        if self._options.only_snapshot:
            # It is one batch, which cannot be held up. What is in stateDir may have been told to an earlier stream.
            self._control = Control(requests=self._control.requests)
        named, begin = self._begun(start)
        ahead: tuple[Ahead, ...] = ()
        if begin is None:
            stands = self._first(named)
        else:
            self._stands = stands = self._standing(named, begin)  # For the report, also where no batch follows.
            self._counting.begin(begin.stream, begin.epoch.timestamp)
            if isinstance(start, InitialOffset):
                self._counting.resume(begin.epoch.number)
            if self._is_over(stands.cursor, begin.epoch):
                return self._nothing(start, begin)
            ahead = self._attachment.ahead(begin)
        step, moved = self._step(stands, ahead, max_rows)
        if begin is not None and step.epoch == begin.epoch:
            return self._nothing(start, begin)
        self._prepare(stands, moved, step)
        self._stands = stands = replace(stands.moved(moved), epoch=step.epoch)
        return Barrier(
            stream=named.stream,
            bookmark=named.bookmark,
            epoch=step.epoch,
            progress=stands.progress,
            ahead=ahead,
            resumed_from=begin if isinstance(start, InitialOffset) else None,
            again=stands.again,
        )

    def _begun(self, start: Offset) -> tuple[NamedStream, Barrier | None]:
        """Where the next batch begins: at what Spark has committed; or, for a new checkpoint, at what stateDir has, if
        anything.
        """
        if isinstance(start, Barrier):
            named = self._attachment.attach(start, start, self._control)
            self._let_go(start)
            self._attachment.settle(start)
            return named, start
        self._opened_last_rows()  # Refuses an orderColumn that cannot be one, before a place in the log is made.
        return self._attachment.begin(self._control)

    def _let_go(self, start: Barrier) -> None:
        """Lets go of the state at which the batch up to `start` was read.

        Chunks that the sink left unread can no longer be read after that; where last rows are kept, which need all
        chunks, they are read here.
        """
        self._release.stop()
        pin, self._pin = self._pin, None
        if pin is None:
            return
        if self._opened_last_rows() is not None:
            with suppress(SnapshotGoneError):
                self._chunks(start).read_rest(pin)
        self._upstream.release(pin)

    def _first(self, named: NamedStream) -> _Standing:
        """Where a stream is before its first batch."""
        latest = self._options.startup_mode is StartupMode.LATEST
        progress = Finished(0, 0) if latest else Frontier.at_start(self._attachment.bounds())
        return _Standing(named, None, progress, None)

    def _standing(self, named: NamedStream, begin: Barrier) -> _Standing:
        """Where the stream is before the batch after `begin`, with what that batch is to take again."""
        lost = () if self._requests.why_never else self._attachment.manifest(begin).given_up
        again = self._requests.next_up(begin, lost, self._control)
        answers = again is not None and again.frontier is None and again.request != begin.taken_up
        before, now = map(columns_of_last_rows, (begin.bookmark, named.bookmark))
        keeps_others = self._options.last_rows is not None and now != before
        return _Standing(named, begin.epoch, settled(begin.progress), again, answers or keeps_others)

    def _is_over(self, progress: Progress, after: Epoch) -> bool:
        """Whether the query ends at `after`: its only batch is done, or it has come to the present to stop at."""
        if self._options.only_snapshot:
            return True
        waits = isinstance(progress, Finished) or self._control.holds
        if not waits or self._until is None:
            return False
        return self._upstream.reached(after, self._until) and not self._upstream.has_gap_after(after)

    def _nothing(self, start: Offset, begin: Barrier) -> Offset:
        """The answer where there is nothing to read: `start`, after which Spark runs no batch.

        Only at the start of a checkpoint does Spark run a batch in any case: an empty one, which ends at `begin`.
        """
        if self._until is not None:
            # The query ends here, and nobody is left to record later what was put off.
            self._attachment.settle(begin, at_once=True)
        if isinstance(start, InitialOffset):
            return replace(begin, resumed_from=begin)
        self._counting.complete(self._lag(begin.epoch).complete_until)
        return start

    def _step(self, stands: _Standing, ahead: tuple[Ahead, ...], max_rows: int | None) -> tuple[Step, Progress]:
        """The state the next batch ends at, and how far the stream's cursor gets there.

        If the pinned state is lost before its rows have been counted, another one is taken.
        """
        after, cursor = stands.epoch, stands.cursor
        max_changes, until = self._most_changes(max_rows, ahead)
        if not isinstance(cursor, Frontier):
            step = self._upstream.log_epoch(after, max_changes=max_changes, until=until)
            if stands.needs_barrier and step.epoch == after and until is None:
                # Only the offset of a batch can record what needs a barrier, so there is to be one.
                step = self._upstream.snapshot_epoch(after, max_changes=max_changes)
            return step, cursor
        if self._control.holds:
            return self._upstream.held_epoch(after, max_changes=max_changes), cursor
        lost = 0
        while True:
            step = self._upstream.snapshot_epoch(after, max_changes=max_changes)
            if step.pin is None:
                return step, cursor
            size = self._upstream.size()
            within = limits(size, cursor.vnode_count, max_rows, self._options, self._control)
            try:
                return step, advance(self._upstream, step.pin, cursor, within)
            except SnapshotGoneError:
                lost += 1
                if lost == MOST_LOST:
                    raise

    def _most_changes(self, max_rows: int | None, ahead: tuple[Ahead, ...]) -> tuple[int, str | None]:
        """How many changes the next batch may read at the most, and up to which position."""
        if ahead and self._options.on_truncate is OnTruncate.EMIT:
            # All the way to the states that are ahead: a truncation before them matters to the changes after it, and a
            # later batch would not know of it.
            return UNLIMITED, None
        return grown(max_rows or UNLIMITED, self._worked_off), self._until

    def _prepare(self, stands: _Standing, moved: Progress, step: Step) -> None:
        """Prepares the batch that takes the stream's cursor to `moved`: keeps its pin and its manifest, if any."""
        cursor, self._pin = stands.cursor, step.pin
        # A batch of this number may have been planned before, and not been logged by Spark, or in another checkpoint.
        files = self._attachment.staging(stands.named.stream).of_batch(step.epoch.number)
        files.forget()
        works_off = isinstance(cursor, Frontier) and step.pin is None and not self._control.holds
        self._worked_off = self._worked_off + 1 if works_off else 0
        if isinstance(cursor, Frontier):
            manifest = planned_manifest(pieces(cursor, moved), step.epoch, self._options.num_partitions)
            files.keep_manifest(manifest)

    # -- from two offsets to what has to be read -------------------------------------------------------------------

    def parts(self, start: Offset, end: Offset) -> tuple[Part, ...]:
        """What readers read for the batch from `start` to `end`: changes first, then snapshot rows.

        The same rows for the same offsets, also in a new process: from the change log, the staging directory and,
        for a chunk that was never staged, from a later state which is recorded with it.
        """
        if not isinstance(end, Barrier):
            return ()  # Logged by an earlier version, in which a snapshot-only stream could be told to wait.
        begin = end.resumed_from if isinstance(start, InitialOffset) else start
        self._attachment.attach(begin, end, self._control)
        if begin is not None and begin.epoch == end.epoch:
            return ()
        held, staging, last_rows = self._pin, self._attachment.staging(end.stream), self._opened_last_rows()
        if last_rows is not None and held is None:
            # With this batch the last rows get the columns that the stream carries, and from then on cannot do without.
            self._chunks(end).require_columns()
        following = Following(self._upstream, self.rows, self._options, begin, end, held)
        changes = following.parts(staging, last_rows)
        self._counting.begin(end.stream, (begin or end).epoch.timestamp)
        self._counting.add(end.epoch.number, following.tally)
        snapshot, pin = self._chunks(end).parts(begin, held)
        unread = [part.chunk for part in snapshot if isinstance(part, SnapshotPart)]
        self._pin = pin if unread else None
        if self._pin is not None:
            self._release.when_staged(self._pin, unread)
        elif pin is not None:
            self._upstream.release(pin)
        return (*changes, *snapshot)

    def _chunks(self, end: Barrier) -> Chunks:
        return Chunks(self._upstream, self._attachment.staging(end.stream), self.rows, self._options, end)

    def _require_last_rows(self, begin: Barrier, end: Barrier) -> None:
        last_rows = self._opened_last_rows()
        if last_rows is not None:
            last_rows.require_standing(begin, end)

    def _opened_last_rows(self) -> LastRows | None:
        if self._last_rows is None and self._open_last_rows is not None:
            self._last_rows = self._open_last_rows(self.rows)
        return self._last_rows

    def close(self) -> None:
        """Lets go of everything, a pin too. May be called again."""
        self._release.stop()
        if self._last_rows is not None:
            self._last_rows.close()
        self._upstream.close()
