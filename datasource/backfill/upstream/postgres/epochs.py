"""Where batches may end: states of the database that readers can look at, or places in its change log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from psycopg import sql

from backfill.epoch import Epoch
from backfill.errors import TransientError
from backfill.upstream import Pin, Step
from backfill.upstream.postgres.changes.changelog import ChangeLog
from backfill.upstream.postgres.changes.log import MOST_MESSAGES, Peeked, Stretch
from backfill.upstream.postgres.position import LOG_BEGIN, Lsn, Position, Snapshot
from backfill.upstream.postgres.replication import unseen
from backfill.upstream.postgres.replication.end_of_log import ENDS_OF_LOG, flushed_end
from backfill.upstream.postgres.replication.timelines import FIRST
from backfill.upstream.postgres.session.connection import Connector, Session, one_row
from backfill.upstream.postgres.session.server import require_log
from backfill.upstream.postgres.session.sessions import ControlSession
from backfill.upstream.postgres.snapshot.pin import CLOCK, Exported, ExportingSession
from backfill.upstream.postgres.tables.still_same import require_unchanged
from backfill.upstream.postgres.tables.table import Table

logger = logging.getLogger("backfill")

HEARTBEAT_BYTES: Final = 16 << 20
"""How far the log may grow without anything for us before an empty batch lets the slot follow."""

LOOK_INTERVAL: Final = 10.0
"""Seconds after which the log is read although it has not grown, when Spark next asks: a slot that is only watched
counts as idle, and from PostgreSQL 18 on idle_replication_slot_timeout may invalidate it."""

EVERY_COMMIT: Final = Position(Lsn((1 << 63) - 1))


@dataclass(frozen=True, slots=True)
class Searched:
    """How far the log was read for steps without rows to read, so that nothing is left to find before there."""

    upto: Lsn = LOG_BEGIN
    found_after: Position | None = None
    """Where the last such reading began, if it found changes. Asked again from there, these changes are due again
    although they lie before `upto`.
    """

    def has_nothing(self, after: Position, upto: Lsn) -> bool:
        """Whether nothing is to be found after this position and up to this LSN."""
        return upto <= self.upto and after != self.found_after

    def having_read(self, peeked: Peeked) -> Searched:
        if peeked.complete:
            stretch = peeked.stretch
            return Searched(max(self.upto, stretch.upto), None if peeked.is_idle else stretch.after)
        # As where a plan that nobody logged had room for more: what is left has to be found from here on.
        return replace(self, upto=min(self.upto, peeked.end))


class Epochs:
    """Finds the epoch after one, and holds the state it pins. Of a stream without a log only the first is asked for."""

    def __init__(self, connector: Connector, sessions: ControlSession, table: Table) -> None:
        self._connector = connector
        self._sessions = sessions
        self._table = table
        self._log: ChangeLog | None = None
        self.exporter = ExportingSession(connector, table.keyed)
        self._searched = Searched()
        self._held_at: Position | None = None
        """The state up to which nothing was found while the snapshot was held."""

        self._read_at = -LOOK_INTERVAL
        """When the log was read last, by the monotonic clock."""

        self._said_unseen = False
        self._stepped_to = LOG_BEGIN
        self._clock = 0
        """When the end of the log was looked at last, in microseconds since 1970 by the server."""

        self.complete_until = 0
        """Microseconds since 1970 up to which all that was committed has been found; 0 before anything was."""

    def attach(self, log: ChangeLog) -> None:
        self._log = log

    def close(self) -> None:
        self.exporter.close()
        if self._log is not None:
            self._log.kept.let_go()

    @property
    def log(self) -> ChangeLog:
        if self._log is None:
            raise RuntimeError("attach comes before everything that concerns the change log")
        return self._log

    @property
    def is_attached(self) -> bool:
        return self._log is not None

    @property
    def _collations(self) -> str:
        """What the key is in the order of."""
        return self._table.collations if self._log is None else self._log.begun.collations

    @property
    def searched_upto(self) -> Lsn:
        """The LSN up to which nothing is left to find: log that was read and had nothing for the stream is no lag."""
        return max(self._stepped_to, self._searched.upto)

    def present(self) -> Position:
        """The state of now, all of which has been flushed to the log."""
        return self._sessions.run(self._look)

    def _look(self, session: Session) -> Position:
        """As `present`; keeps when that was."""
        query = sql.SQL("SELECT {}, pg_catalog.pg_current_snapshot()::text, {}").format(CLOCK, ENDS_OF_LOG)
        self._clock, snapshot, inserted, flushed = one_row(session.execute(query))
        return Position(flushed_end(session, self._connector, inserted, flushed), Snapshot.parse(snapshot))

    # -- with rows to read -----------------------------------------------------------------------------------------

    def snapshot_epoch(self, after: Epoch | None, max_changes: int) -> Step:
        """See `Upstream.snapshot_epoch`."""
        return self._stepped(lambda: self._snapshot_step(after, max_changes))

    def repin(self, after: Epoch) -> Pin:
        """See `Upstream.repin`."""
        before = Position.parse(after.position)

        def attempt() -> Exported:
            exported = self.exporter.export()
            require_unchanged(exported.session, self._table, self._collations)
            if not self._sees_all(before, exported.position):
                raise TransientError(
                    "a commit that the batch has is still invisible to readers, as while a synchronous standby does "
                    "not answer. Start the standby, or take it out of synchronous_standby_names, and start the query "
                    "again"
                )
            return exported

        with self._released_on_error():
            exported = self._sessions.retry(attempt)
        position = exported.position
        if self._log is not None:
            timeline = self._log.place.log.timeline
            position = replace(position, timeline="" if timeline == FIRST else timeline)
            self._log.has_reached(position)
        epoch = Epoch(after.number, str(position), position.lsn, exported.timestamp)
        return Pin(epoch, exported.token)

    def _sees_all(self, before: Position, now: Position) -> bool:
        """Whether readers of `now` see all that `before` shows.

        If `before` is an LSN alone, and not all before it was visible then, the log has to be read to know.
        """
        if before.snapshot is not None:
            return now.shows_all_of(before)
        if before.unseen is None:
            return now.lsn >= before.lsn
        peeked = self._read(Stretch(before, before, before.lsn), MOST_MESSAGES)  # of which no change is wanted
        peeked.rows.close()
        return now.lsn >= before.lsn and peeked.sees_all(now)

    def _stepped(self, step: Callable[[], Step]) -> Step:
        with self._released_on_error():
            found = self._sessions.retry(step)
        self._stepped_to = Position.parse(found.epoch.position).lsn
        return found

    @contextmanager
    def _released_on_error(self) -> Iterator[None]:
        """Lets go of the state that the body has exported, if it fails: nobody has its pin by then."""
        try:
            yield
        except BaseException:
            self.exporter.close()
            raise

    def _snapshot_step(self, after: Epoch | None, max_changes: int) -> Step:
        """The state of now, pinned; or, if too much has happened since `after`, a part of the way to it.

        An epoch by LSN alone may show commits that nobody sees yet. They are made visible one moment after they were
        logged, unless they wait for a standby: then changes are followed on, and rows are read when they are seen.
        """
        give_up = time.monotonic() + (0 if self._said_unseen else unseen.PATIENCE)
        while (step := self._exported_step(after, max_changes)) is None and time.monotonic() <= give_up:
            time.sleep(unseen.INTERVAL)
        if step is not None:
            self._said_unseen = False
            return step
        if not self._said_unseen:
            logger.warning(
                "rows are not read again yet: a commit that was passed on is still invisible to readers, as while a "
                "synchronous standby does not answer"
            )
        self._said_unseen = True
        return self._log_step(after, max_changes, None)

    def _exported_step(self, after: Epoch | None, max_changes: int) -> Step | None:
        """None where `after` shows what no reader sees yet."""
        exporter = self.exporter
        exported = exporter.export()
        require_unchanged(exported.session, self._table, self._collations)
        now = exported.position
        epoch = _next(after, now, exported.timestamp)
        if after is None:
            self.complete_until = exported.timestamp
            return Step(epoch, Pin(epoch, exported.token))
        peeked = self._read(Stretch(Position.parse(after.position), now, now.lsn), max_changes)
        if not peeked.sees_all(now):
            exporter.release(exported.token)
            peeked.rows.close()
            return None
        if not peeked.complete:
            exporter.release(exported.token)
            # A state of the past, from which it is told how far behind a stream is that has stopped at it.
            cut = replace(now, lsn=peeked.end)
            epoch = _next(after, cut, peeked.timestamp or 0)
        self._keep(after, epoch, peeked, exported.timestamp)
        return Step(epoch, Pin(epoch, exported.token) if peeked.complete else None)

    # -- without ---------------------------------------------------------------------------------------------------

    def log_epoch(self, after: Epoch | None, max_changes: int, until: str | None) -> Step:
        """See `Upstream.log_epoch`."""
        return self._stepped(lambda: self._log_step(after, max_changes, until))

    def held_epoch(self, after: Epoch | None, max_changes: int) -> Step:
        """See `Upstream.held_epoch`."""
        return self._stepped(lambda: self._held_step(after, max_changes))

    def _log_step(self, after: Epoch | None, max_changes: int, until: str | None) -> Step:
        """The next commits in the log, whether visible yet or not: no snapshot rows are read any more."""
        self.exporter.close()
        if after is None:
            now = self._look(self._sessions.current())
            self.complete_until = self._clock
            # What was visible is known when the log has been read.
            return Step(_next(None, Position(now.lsn, unseen=LOG_BEGIN), self._clock), None)
        began = Position.parse(after.position)
        seen = Position.parse(until) if until else self._look(self._sessions.current())
        # What lies between a position that was asked for and the end of a gap is lost, and never to be found.
        upto = max(seen.lsn, self.log.lost_up_to)
        if upto < self._searched.upto and not until:
            # The log ends before where it was read to: another server, or this one as it was some time ago.
            require_log(self._sessions.current(), system=self.log.place.log.system, reached=self._searched.upto)
        if self._searched.has_nothing(began, upto) and self._read_lately:
            return self._staying(after)
        peeked = self._read(Stretch(began, EVERY_COMMIT, upto), max_changes)
        self._searched = self._searched.having_read(peeked)
        if peeked.is_idle and self._may_stay(began, upto):
            return self._staying(after)
        # All the way where the log was read that far: what is ahead may be there, behind the table's last commit.
        end = max(upto, peeked.end) if peeked.complete else peeked.end
        position = Position(max(end, began.lsn))
        seen_upto = peeked.acknowledgeable(seen)
        if seen_upto < position.lsn:
            position = replace(position, unseen=seen_upto)
        epoch = _next(after, position, peeked.timestamp or 0)
        self._keep(after, epoch, peeked, self._clock)
        return Step(epoch, None)

    def _held_step(self, after: Epoch | None, max_changes: int) -> Step:
        """What is visible now, as far as the log is read: the snapshot that goes on later must see all of it."""
        self.exporter.close()
        if after is not None and Position.parse(after.position).snapshot is None:
            return self._log_step(after, max_changes, None)
        now = self._look(self._sessions.current())
        if after is None:
            self.complete_until = self._clock
            return Step(_next(None, now, self._clock), None)
        if now == self._held_at and self._read_lately:
            return self._staying(after)
        began = Position.parse(after.position)
        peeked = self._read(Stretch(began, now, now.lsn), max_changes)
        if peeked.is_idle:
            self._held_at = now
            if self._may_stay(began, now.lsn):
                return self._staying(after)
        position = now if peeked.complete else replace(now, lsn=peeked.end)
        epoch = _next(after, position, peeked.timestamp or 0)
        self._keep(after, epoch, peeked, self._clock)
        return Step(epoch, None)

    def _staying(self, after: Epoch) -> Step:
        """Where nothing has happened since `after`, up to when the end of the log was looked at."""
        self.complete_until = self._clock
        return Step(after, None)

    def _may_stay(self, began: Position, upto: Lsn) -> bool:
        """Whether the stream may stay where it is although the log was read up to `upto`, in which nothing is for it.

        Not before a gap that it was told to pass: it would be asked about it again at the next start.
        """
        return upto - began.lsn < HEARTBEAT_BYTES and not self.log.has_gap_after(began)

    @property
    def _read_lately(self) -> bool:
        return time.monotonic() - self._read_at < LOOK_INTERVAL

    def _read(self, stretch: Stretch, limit: int) -> Peeked:
        self._read_at = time.monotonic()
        return self.log.read(self._sessions.current(), stretch, limit)

    def _keep(self, after: Epoch, upto: Epoch, peeked: Peeked, now: int) -> None:
        """As `KeptChanges.keep`; `now` is until when nothing is missing where what was peeked is complete."""
        self.complete_until = now if peeked.complete else peeked.timestamp or after.timestamp
        self.log.kept.keep(upto, peeked)


def _next(after: Epoch | None, position: Position, timestamp: int) -> Epoch:
    if after is None:
        return Epoch(1, str(position), position.lsn, timestamp)
    # A commit that was invisible for a while is older than the state before it.
    return Epoch(after.number + 1, str(position), position.lsn, max(timestamp, after.timestamp))
