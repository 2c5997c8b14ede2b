"""An exported snapshot: one state of the database that readers on any machine can read.

TRUNCATE and rewriting ALTERs are not MVCC-safe (PostgreSQL manual, 13.6): after one of them the table looks empty in
an earlier snapshot. A lock held from before the snapshot to the end of the last chunk would keep them out, but such a
statement would then wait for the chunks, and their readers for it, because the server serves locks in the order in
which they are asked for; and everybody else's queries with them. So each transaction locks the table on its own, as
every SELECT does, for as long as it looks at it, and makes sure that the rows are still where they were before the
snapshot was taken, and the columns still have the names that they had. The token of a snapshot says where the rows are.

The server names snapshots by its processes' numbers and counts their transactions, both anew after a restart: the name
of one that went with the server may be that of another one by then, which a reader that tries again would take for its
own. So the token says as well which transactions the snapshot sees.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from psycopg import sql

from backfill.errors import SnapshotGoneError, TransientError
from backfill.upstream.postgres import locks
from backfill.upstream.postgres.columns import (
    DEFINITIONS,
    names_of,
    require_names,
    require_same_types,
    require_same_values,
    require_there,
)
from backfill.upstream.postgres.connection import Connector, Cursor, Session, one_row
from backfill.upstream.postgres.end_of_log import ENDS_OF_LOG, flushed_end
from backfill.upstream.postgres.failures import about_snapshot, translating
from backfill.upstream.postgres.files import Files, files_of
from backfill.upstream.postgres.plans import many_unseen
from backfill.upstream.postgres.position import Position, Snapshot
from backfill.upstream.postgres.ranges import KeyedTable
from backfill.upstream.postgres.server import require_primary_again
from backfill.wording import FRESH_START

CLOCK: Final = sql.SQL("(extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000::numeric)::bigint")
"""The time by the server's clock, in microseconds since 1970."""

BEGIN: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


@dataclass(frozen=True, slots=True)
class Exported:
    """What an exporting transaction tells: the state, its name for readers, and when it was taken (µs since 1970)."""

    position: Position
    token: str
    timestamp: int
    many_unseen: bool
    """Whether `plans.many_unseen` said so."""


@dataclass(frozen=True, slots=True)
class Held:
    """A state that is held, and the transaction that holds it."""

    exported: Exported
    session: Session


class ExportingSession:
    """Holds one exported snapshot at a time. `release` may be called from another thread."""

    def __init__(self, connector: Connector, table: KeyedTable) -> None:
        self._connector = connector
        self._table = table
        self._held: Held | None = None
        self._lock = threading.Lock()

    def export(self) -> Exported:
        """A new snapshot; an earlier one is released. Everything it sees has been flushed to the log."""
        self.close()
        session = self._connector.session()
        try:
            require_primary_again(session)
            with translating():
                exported = self._begin(session)
        except BaseException:
            session.close()
            raise
        with self._lock:
            self._held = Held(exported, session)
        return exported

    def _begin(self, session: Session) -> Exported:
        # Locking the table takes the snapshot, and then waits for whoever writes the table anew.
        with session.pipeline():
            session.execute(locks.IN_SESSION)
            stood = session.execute(sql.SQL("SELECT {}").format(files_of(self._table.name)))
        with session.pipeline():
            session.execute(BEGIN)
            with _locked(session, self._table):
                # Columns are computed after the statement's snapshot has been taken, which under REPEATABLE READ is the
                # transaction's: so the insert position lies behind all commits the snapshot sees.
                query = sql.SQL("SELECT pg_catalog.pg_current_snapshot()::text, {}, {}, {}").format(
                    ENDS_OF_LOG, CLOCK, files_of(self._table.name)
                )
                looked = session.execute(query)
            named = session.execute("SELECT pg_catalog.pg_export_snapshot()")
            asked = session.execute(many_unseen(self._table))
        (unseen,) = one_row(asked)
        snapshot, inserted, flushed, taken, files = one_row(looked)
        (before,), (name,) = one_row(stood), one_row(named)
        _require_same_files(before, files)
        position = Position(flushed_end(session, self._connector, inserted, flushed), Snapshot.parse(snapshot))
        return Exported(position, f"{name} {snapshot} {files}", taken, unseen)

    @contextmanager
    def looking(self, token: str) -> Iterator[Session]:
        """The transaction that holds the snapshot of this token, for statements that read the table."""
        session = self.held(token).session
        with session.pipeline(), _locked(session, self._table):
            _require_same_state(token, session.cursor(), self._table)
            yield session

    def held(self, token: str) -> Held:
        """What holds the snapshot of this token; SnapshotGoneError where it has been released."""
        held = self._held
        if held is None or held.exported.token != token:
            raise SnapshotGoneError("the state that is read at has been released")
        return held

    def current(self) -> Session:
        """The transaction that holds the present snapshot."""
        held = self._held
        if held is None:
            raise TransientError("the snapshot has been released")
        return held.session

    def release(self, token: str) -> None:
        with self._lock:
            if self._held is not None and self._held.exported.token == token:
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
    """Locks the table for the body only: what is locked after a savepoint is let go with it."""
    session.execute("SAVEPOINT looking")
    session.execute(table.lock)
    yield
    session.execute("ROLLBACK TO SAVEPOINT looking")
    session.execute("RELEASE SAVEPOINT looking")


def stored(cursor: Cursor, table: KeyedTable) -> str:
    """Which files hold the rows now, whatever state the session looks at."""
    cursor.execute(sql.SQL("SELECT {}").format(files_of(table.name)).as_string(None))
    (files,) = cursor.fetchone()
    return str(files)


def _look(cursor: Cursor, table: KeyedTable) -> tuple[str, str]:
    """Which files hold the rows, and what the session's snapshot sees; for a transaction that has locked the table.

    Raises SchemaChangedError where the columns that are read have other names by now.
    """
    look = sql.SQL("SELECT {}, {}, pg_catalog.pg_current_snapshot()::text").format(
        files_of(table.name), names_of(table.name, table.columns)
    )
    cursor.execute(look.as_string(None))
    files, names, seen = cursor.fetchone()
    require_names(table.name, table.columns, names)
    return str(files), str(seen)


def _require_same_state(token: str, cursor: Cursor, table: KeyedTable) -> None:
    """For a session that has locked the table and is in the snapshot of the token's name.

    Raises SnapshotGoneError unless that is the token's, and the rows are where they were when it was taken.
    """
    _, then_seen, then_stored = token.split(" ", 2)
    files, seen = _look(cursor, table)
    if seen != then_seen:
        raise SnapshotGoneError(
            "the state that is read at went with the server, which was restarted since, and another one has its name "
            "by now. Start the query again; what was cut off is read at a later state"
        )
    if not Files.parse(files).hold_rows_of(Files.parse(then_stored)):
        raise SnapshotGoneError(
            "the table was truncated or written anew since the state that is read was taken, or a partition of it was, "
            "or was attached, detached or dropped with rows in it; it can no longer be read as it was. A query that "
            "failed over this reads on at a later state when it is started again. Of the rows of a partition that was "
            "truncated by itself, attached, detached or dropped the change log tells nothing: if there were any, start "
            f"over with {FRESH_START}"
        )


def snapshot_of(token: str) -> str:
    """What `SET TRANSACTION SNAPSHOT` takes."""
    return token.partition(" ")[0]


def enter(cursor: Cursor, table: KeyedTable) -> None:
    """Begins a transaction in the state of now, and locks the table until its end.

    Raises TableLockedError where somebody else has it locked for longer than a moment, SchemaChangedError where its
    columns have other names.
    """
    cursor.execute(locks.IN_SESSION)
    before = stored(cursor, table)
    cursor.execute(locks.NO_LONGER)
    cursor.execute(BEGIN)
    cursor.execute(locks.IN_TRANSACTION)
    cursor.execute(table.lock.as_string(None))
    files, _ = _look(cursor, table)
    _require_same_files(before, files)


def enter_pinned(cursor: Cursor, table: KeyedTable, token: str) -> None:
    """The same in the state of this token; SnapshotGoneError where that has been released."""
    cursor.execute(BEGIN)
    cursor.execute(locks.IN_TRANSACTION)
    snapshot = sql.Literal(snapshot_of(token))
    with translating(about_snapshot):
        cursor.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(snapshot).as_string(None))
    cursor.execute(table.lock.as_string(None))
    try:
        _require_same_state(token, cursor, table)
    except SnapshotGoneError:
        _require_same_definitions(cursor, table)
        raise


def _require_same_definitions(cursor: Cursor, table: KeyedTable) -> None:
    """Raises SchemaChangedError where columns that are read are defined otherwise by now, so that the table was written
    anew with other values: the stream would not see it any more once it has started again.
    """
    cursor.execute("ROLLBACK")  # The catalog of an earlier state has the earlier definitions.
    cursor.execute(locks.IN_SESSION)  # Which ends with the error that follows in any case.
    oid = sql.SQL("pg_catalog.to_regclass({})").format(sql.Literal(table.name.quoted()))
    cursor.execute(sql.SQL("SELECT ({})::text").format(DEFINITIONS.format(oid)).as_string(None))
    (found,) = cursor.fetchone()
    now = json.loads(found)
    require_there(table.name, table.columns, now)
    require_same_types(table.name, table.columns, now)
    require_same_values(table.name, table.columns, now)


def _require_same_files(before: str, now: str) -> None:
    """For a transaction that has locked the table since: whether its snapshot, taken in between, can be read."""
    if not Files.parse(now).are_those_of(Files.parse(before)):
        raise TransientError(
            "the table was truncated or written anew, or a partition of it, each time its state was taken. Start the "
            "query again when that is over"
        )
