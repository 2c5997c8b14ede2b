"""Locks of the table. Statements that only look at it do not wait long while somebody has locked it: they are tried
again, and that is logged.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg import sql

from backfill.upstream.postgres.session.connection import Session

LOCK_TIMEOUT: Final = "5s"
"""How long a statement that only looks at the table waits for it, before it is tried again."""

IN_SESSION: Final = f"SET lock_timeout = '{LOCK_TIMEOUT}'"
"""For a session that will lock the table; finding out where its rows are stored waits as well."""

NO_LONGER: Final = "RESET lock_timeout"
"""Ends that, for a session that others will use."""

IN_TRANSACTION: Final = f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'"
"""The same for a transaction, until it ends."""


def asked(session: Session, query: sql.Composable) -> list[tuple[Any, ...]]:
    """The rows of a query without parameters, in a transaction of its own and one round trip."""
    cursor = session.execute(sql.SQL("{}; {}").format(sql.SQL(IN_TRANSACTION), query))
    cursor.nextset()
    return cursor.fetchall()


def take_without_snapshot(session: Session, table: sql.Composable) -> None:
    """Takes, in a transaction that has no snapshot, the lock that publishing the table takes; none without the right.

    Whoever builds an index concurrently has that lock, and in the end waits for each older snapshot. If such a snapshot
    waited for the lock, as that of CREATE PUBLICATION does, the server would see a deadlock, and end the building. LOCK
    TABLE needs a snapshot only to look up the table, which the first try does, without waiting.
    """
    lock = sql.SQL("LOCK TABLE ONLY {} IN SHARE UPDATE EXCLUSIVE MODE").format(table)
    try:
        with session.transaction():
            session.execute(sql.SQL("{} NOWAIT").format(lock))
    except psycopg.errors.LockNotAvailable:
        session.execute(lock)
    except psycopg.errors.InsufficientPrivilege:
        pass  # An owner who took rights from itself may still publish the table.
