"""Holds an exported snapshot: one state of the database that readers on any machine can read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from psycopg import sql

from backfill.errors import SnapshotGoneError
from backfill.upstream.postgres.position import Position, Snapshot
from backfill.upstream.postgres.replication.end_of_log import CLOCK, ENDS_OF_LOG, flushed_end
from backfill.upstream.postgres.replication.own_log import OwnLog
from backfill.upstream.postgres.session import locks
from backfill.upstream.postgres.session.connection import Connector, Session, one_row
from backfill.upstream.postgres.session.failures import translating
from backfill.upstream.postgres.session.server import ORIGIN, require_origin, require_primary_again
from backfill.upstream.postgres.snapshot.entering import BEGIN, Token, require_same_files, require_same_state
from backfill.upstream.postgres.snapshot.files import files_of
from backfill.upstream.postgres.snapshot.plans import better_by_bitmap, past_no_default
from backfill.upstream.postgres.tables.ranges import KeyedTable


@dataclass(frozen=True, slots=True)
class ExportedSnapshot:
    """A state, its name for readers, when it was taken (µs since 1970), and the session that holds it."""

    session: Session
    position: Position
    token: str
    timestamp: int
    count_by_bitmap: bool
    """Whether its rows are counted by bitmaps, as `plans.better_by_bitmap` decides."""


class ExportingSession:
    """Holds one exported snapshot at a time. `release` may be called from another thread."""

    def __init__(self, connector: Connector, table: KeyedTable) -> None:
        self.connector = connector
        self.table = table
        self._held: ExportedSnapshot | None = None
        self._lock = threading.Lock()

    def export(self, log: OwnLog | None) -> ExportedSnapshot:
        """A new snapshot; an earlier one is released. Everything it sees has been flushed to the log.

        OtherServerError where the session is on a server with another log than this one, if one is given: see
        `require_log_of`. Readers find the snapshot on no other server than the one that it was taken on.
        """
        self.close()
        session = self.connector.session()
        try:
            require_primary_again(session)
            with translating():
                exported = self._begin(session, log)
        except BaseException:
            session.close()
            raise
        with self._lock:
            self._held = exported
        return exported

    def _begin(self, session: Session, log: OwnLog | None) -> ExportedSnapshot:
        # Locking the table takes the snapshot, and then waits for whoever writes the table anew.
        with session.pipeline():
            session.execute(locks.IN_SESSION)
            origin = session.execute(ORIGIN)
            stood = session.execute(sql.SQL("SELECT {}").format(files_of(self.table.name)))
        if log is not None:
            require_origin(one_row(origin), log.system, log.timeline)
        with session.pipeline():
            session.execute(BEGIN)
            with _locked(session, self.table):
                # Columns are computed after the statement's snapshot has been taken, which under REPEATABLE READ is the
                # transaction's: so the insert position lies behind all commits the snapshot sees.
                query = sql.SQL("SELECT pg_catalog.pg_current_snapshot()::text, {}, {}, {}").format(
                    ENDS_OF_LOG, CLOCK, files_of(self.table.name)
                )
                looked = session.execute(query)
            named = session.execute("SELECT pg_catalog.pg_export_snapshot()")
            asked = session.execute(better_by_bitmap(self.table))
        (by_bitmap,) = one_row(asked)
        snapshot, inserted, flushed, taken, files = one_row(looked)
        (before,), (name,) = one_row(stood), one_row(named)
        require_same_files(before, files)
        position = Position(flushed_end(session, self.connector, inserted, flushed), Snapshot.parse(snapshot))
        return ExportedSnapshot(session, position, str(Token(name, snapshot, files)), taken, by_bitmap)

    @contextmanager
    def looking(self, token: str) -> Iterator[Session]:
        """The transaction that holds the snapshot of this token, for statements that read the table."""
        session = self.held(token).session
        with session.pipeline(), _locked(session, self.table):
            require_same_state(Token.parse(token), session.cursor(), self.table)
            yield session

    def held(self, token: str) -> ExportedSnapshot:
        """The state of this token; SnapshotGoneError where it has been released."""
        held = self._held
        if held is None or held.token != token:
            raise SnapshotGoneError("the exported snapshot has been released")
        return held

    def release(self, token: str) -> None:
        with self._lock:
            if self._held is not None and self._held.token == token:
                self._close()

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._held is not None:
            self._held.session.close()
        self._held = None


@contextmanager
def _locked(session: Session, table: KeyedTable) -> Iterator[None]:
    """Locks the table for the body only: what is locked, or set, after a savepoint is let go with it."""
    session.execute("SAVEPOINT looking")
    session.execute(table.lock)
    if table.partitioned:
        session.execute(past_no_default(table))
    yield
    session.execute("ROLLBACK TO SAVEPOINT looking")
    session.execute("RELEASE SAVEPOINT looking")
