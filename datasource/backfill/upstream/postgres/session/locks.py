"""Locks of the table. Looks at it do not wait for long while somebody has locked it: they are tried again, and that is
said.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg import sql

from backfill.upstream.postgres.session.connection import Session

LOCK_TIMEOUT: Final = "5s"
"""How long a statement waits for the table where a look at it is all that is wanted, before it is tried again."""

IN_SESSION: Final = f"SET lock_timeout = '{LOCK_TIMEOUT}'"
"""For a session that will lock the table; finding out where its rows are stored waits as well."""

NO_LONGER: Final = "RESET lock_timeout"
"""The end of that, for a session that others will use."""

IN_TRANSACTION: Final = f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'"
"""The same for a transaction, until it ends."""


def asked(session: Session, query: sql.Composable) -> list[tuple[Any, ...]]:
    """The rows of a query without parameters: a transaction of its own, and one round trip."""
    cursor = session.execute(sql.SQL("{}; {}").format(sql.SQL(IN_TRANSACTION), query))
    cursor.nextset()
    return cursor.fetchall()


def take_without_snapshot(session: Session, table: sql.Composable) -> None:
    """In a transaction that has no snapshot: the lock that publishing the table takes too; nothing without the right.

    Who builds an index concurrently has that lock, and waits in the end for each snapshot that is older: the server
    would take it for a deadlock if such a snapshot waited for the lock, as that of CREATE PUBLICATION does, and end the
    building. LOCK TABLE needs a snapshot only to look up the table, which the first try does, without waiting.
    """
    lock = sql.SQL("LOCK TABLE ONLY {} IN SHARE UPDATE EXCLUSIVE MODE").format(table)
    try:
        with session.transaction():
            session.execute(sql.SQL("{} NOWAIT").format(lock))
    except psycopg.errors.LockNotAvailable:
        session.execute(lock)
    except psycopg.errors.InsufficientPrivilege:
        pass  # An owner who took rights from itself may still publish the table.
