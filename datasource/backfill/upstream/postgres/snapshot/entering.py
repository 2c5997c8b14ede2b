"""Transactions in which the table is read: in the state of an exported snapshot, or in the present one.

TRUNCATE and rewriting ALTERs are not MVCC-safe (PostgreSQL manual, "Concurrency Control", "Caveats"): after one of
them the table looks empty in an earlier snapshot. A lock held from before the snapshot to the end of the last chunk
would keep them out, but such a statement would then wait for the chunks, and their readers for it, because the server
serves locks in the order in which they are asked for; and everybody else's queries with them. So each transaction locks
the table on its own, as every SELECT does, for as long as it looks at it, and makes sure that the rows are still where
they were before the snapshot was taken, and the columns still have the names that they had. The token of a snapshot
says where the rows are.

The server names snapshots by the numbers of its processes and of their transactions, which both begin anew after a
restart: then another snapshot may have the name of one that went with the server, and a reader that tries again would
take it for its own. So the token also says which transactions the snapshot sees.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from psycopg import sql

from backfill.errors import SnapshotGoneError, TransientError
from backfill.upstream.postgres.session import locks
from backfill.upstream.postgres.session.arrow_session import ArrowSession
from backfill.upstream.postgres.session.connection import Cursor, together
from backfill.upstream.postgres.session.failures import about_snapshot, translating
from backfill.upstream.postgres.snapshot.files import Files, files_of
from backfill.upstream.postgres.snapshot.passed_over import require_all_found, shape_of
from backfill.upstream.postgres.snapshot.plans import past_no_default
from backfill.upstream.postgres.tables.columns import (
    DEFINITIONS,
    names_of,
    require_as_described,
    require_names,
)
from backfill.upstream.postgres.tables.ranges import KeyedTable
from backfill.vnode import KeyRange
from backfill.wording import FRESH_START

_SEEN: Final = sql.SQL("pg_catalog.pg_current_snapshot()::text")

BEGIN: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

LEAVE: Final = f"ROLLBACK; {locks.NO_LONGER}"
"""Ends a transaction of `enter` or `enter_pinned`: two statements, which go together."""


@dataclass(frozen=True, slots=True)
class Token:
    """What a reader is told of an exported snapshot, as a text that travels to it."""

    name: str
    """What SET TRANSACTION SNAPSHOT takes."""

    seen: str
    """Which transactions it sees, as pg_current_snapshot tells."""

    files: str
    """Where the rows are: the text of `Files`."""

    @classmethod
    def parse(cls, text: str) -> Token:
        return cls(*text.split(" ", 2))

    def __str__(self) -> str:
        return f"{self.name} {self.seen} {self.files}"


def stored(cursor: Cursor, table: KeyedTable) -> str:
    """Which files hold the rows now, whatever state the session looks at."""
    cursor.execute(sql.SQL("SELECT {}").format(files_of(table.name)).as_string(None))
    (files,) = cursor.fetchone()
    return str(files)


def _look(cursor: Cursor, table: KeyedTable, *further: sql.Composable) -> tuple[Any, ...]:
    """Which files hold the rows, and the values of further expressions; for a transaction that has locked the table.

    Raises SchemaChangedError where the columns that are read have other names by now.
    """
    wanted = sql.SQL(", ").join([names_of(table.name, table.columns), files_of(table.name), *further])
    cursor.execute(sql.SQL("SELECT {}").format(wanted).as_string(None))
    names, *found = cursor.fetchone()
    require_names(table.name, table.columns, names)
    return tuple(found)


def require_same_state(token: Token, cursor: Cursor, table: KeyedTable) -> None:
    """For a session that has locked the table and is in the snapshot of the token's name.

    Raises SnapshotGoneError unless that is the token's snapshot, and the rows are where they were when it was taken.
    """
    files, seen = _look(cursor, table, _SEEN)
    if seen != token.seen:
        raise SnapshotGoneError(
            "the exported snapshot ended when the server was restarted, and a newer one has its name. Start the "
            "query again; the chunk that was cut off is read at a later state"
        )
    if not Files.parse(files).hold_rows_of(Files.parse(token.files)):
        raise SnapshotGoneError(
            "the table or a partition of it was truncated or rewritten since the snapshot was taken, or a partition "
            "with rows was attached, detached or dropped, so the table can no longer be read as it was. Start the "
            "query again; it reads on at a later state. If a single partition with rows was truncated, attached, "
            f"detached or dropped, the change log does not show that: start over with {FRESH_START}"
        )


def enter(session: ArrowSession, table: KeyedTable, ranges: Sequence[KeyRange]) -> None:
    """Begins a transaction in the present state, and locks the table until its end, which is to be `LEAVE`.

    Raises TableLockedError where somebody else has it locked for longer than a moment, SchemaChangedError where its
    columns have other names, or where statements that ask for these ranges would pass over rows or give some twice.
    """
    session.execute(locks.IN_SESSION)
    before = stored(session, table)
    session.carry_out(together(BEGIN, _lock(table)))
    files, *found = _look(session, table, *shape_of(table, ranges))
    require_same_files(before, files)
    require_all_found(table, ranges, *found)


def enter_pinned(cursor: Cursor, carry_out: Callable[[str], object], table: KeyedTable, token: str) -> None:
    """As `enter`, in the state of this token; SnapshotGoneError where that has been released.

    `carry_out` executes several statements at once in the cursor's session.
    """
    pinned = Token.parse(token)
    shown = sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(pinned.name)).as_string(None)
    with translating(about_snapshot):
        carry_out(together(BEGIN, locks.IN_TRANSACTION, shown, _lock(table)))
    try:
        require_same_state(pinned, cursor, table)
    except SnapshotGoneError:
        _require_same_definitions(cursor, table)
        raise


def _lock(table: KeyedTable) -> str:
    """Locks the table; and has the server look in all partitions that have rows."""
    statements = [table.lock, past_no_default(table)] if table.partitioned else [table.lock]
    return together(*(statement.as_string(None) for statement in statements))


def _require_same_definitions(cursor: Cursor, table: KeyedTable) -> None:
    """Raises SchemaChangedError where columns that are read were redefined, so that the table was written anew with
    other values: a stream that is started again would not notice.
    """
    cursor.execute("ROLLBACK")  # The catalog of an earlier state has the earlier definitions.
    cursor.execute(locks.IN_SESSION)  # An error follows in any case, and the session ends with it.
    oid = sql.SQL("pg_catalog.to_regclass({})").format(sql.Literal(table.name.quoted()))
    cursor.execute(sql.SQL("SELECT ({})::text").format(DEFINITIONS.format(oid)).as_string(None))
    (found,) = cursor.fetchone()
    require_as_described(table.name, table.columns, json.loads(found))


def require_same_files(before: str, now: str) -> None:
    """Raises TransientError unless rows are `now` in the files of `before`, so that a snapshot taken in between can be
    read, in a transaction that has locked the table since.
    """
    if not Files.parse(now).are_those_of(Files.parse(before)):
        raise TransientError(
            "the table or a partition of it was truncated or rewritten each time a snapshot was taken. Start the "
            "query again when that is over"
        )
