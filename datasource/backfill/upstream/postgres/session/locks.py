"""Looks at the table that do not wait for long while somebody has locked it: they are tried again, and that is said."""

from __future__ import annotations

from typing import Any, Final

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
