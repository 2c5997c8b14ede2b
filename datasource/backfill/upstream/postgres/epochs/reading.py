"""Reading the log from one epoch to the next, and what is known by that."""

from __future__ import annotations

import time
from typing import Final

from psycopg import sql

from backfill.epoch import Epoch
from backfill.upstream.postgres.changes.changelog import ChangeLog
from backfill.upstream.postgres.changes.log import Peeked, Stretch
from backfill.upstream.postgres.position import Position, Snapshot
from backfill.upstream.postgres.replication.end_of_log import CLOCK, ENDS_OF_LOG, flushed_end
from backfill.upstream.postgres.session.connection import Connector, Session, one_row
from backfill.upstream.postgres.session.sessions import ControlSession

LOOK_INTERVAL: Final = 10.0
"""Seconds after which the log is read although it has not grown, when Spark next asks: a slot that is only watched
counts as idle, and from PostgreSQL 18 on idle_replication_slot_timeout may invalidate it."""


class Reading:
    """The log as it is read for one epoch after the other."""

    def __init__(self, connector: Connector, sessions: ControlSession) -> None:
        self._connector = connector
        self._sessions = sessions
        self._log: ChangeLog | None = None
        self._read_at = -LOOK_INTERVAL
        """When the log was read last, by the monotonic clock."""

        self.looked_at = 0
        """When the end of the log was looked at last, in microseconds since 1970 by the server."""

        self.complete_until = 0
        """Microseconds since 1970 up to which all that was committed has been found; 0 before anything was."""

    def attach(self, log: ChangeLog) -> None:
        self._log = log

    @property
    def is_attached(self) -> bool:
        return self._log is not None

    @property
    def log(self) -> ChangeLog:
        if self._log is None:
            raise RuntimeError("attach comes before everything that concerns the change log")
        return self._log

    @property
    def session(self) -> Session:
        """The session in which the log is read."""
        return self._sessions.current()

    @property
    def read_lately(self) -> bool:
        return time.monotonic() - self._read_at < LOOK_INTERVAL

    def look(self, session: Session) -> Position:
        """The present state, once all of it has been flushed to the log; `looked_at` is when that was."""
        query = sql.SQL("SELECT {}, pg_catalog.pg_current_snapshot()::text, {}").format(CLOCK, ENDS_OF_LOG)
        self.looked_at, snapshot, inserted, flushed = one_row(session.execute(query))
        return Position(flushed_end(session, self._connector, inserted, flushed), Snapshot.parse(snapshot))

    def read(self, stretch: Stretch, limit: int) -> Peeked:
        self._read_at = time.monotonic()
        return self.log.read(self.session, stretch, limit)

    # -- the epoch that it leads to --------------------------------------------------------------------------------

    def first(self, position: Position, now: int) -> Epoch:
        """The epoch at which a stream begins: the state of this moment."""
        self.complete_until = now
        return Epoch(1, str(position), position.lsn, now)

    def stayed(self, after: Epoch) -> Epoch:
        """The epoch `after` again: nothing was there for the stream up to when the end of the log was looked at."""
        self.complete_until = self.looked_at
        return after

    def led(self, after: Epoch, position: Position, peeked: Peeked, now: int, timestamp: int | None = None) -> Epoch:
        """The epoch at this position; keeps what was peeked for it.

        `now` is the moment up to which nothing is missing, if the peek is complete. Where no `timestamp` is given, the
        epoch's is that of the last commit.
        """
        at = (peeked.timestamp or 0) if timestamp is None else timestamp
        # A commit that was invisible for a while may be older than the state before.
        epoch = Epoch(after.number + 1, str(position), position.lsn, max(at, after.timestamp))
        self.complete_until = now if peeked.complete else peeked.timestamp or after.timestamp
        self.log.kept.keep(epoch, peeked)
        return epoch
