"""The option `filter`: a condition in SQL that the user has written, made part of our statements."""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg import sql

from backfill.errors import OptionsError
from backfill.upstream.postgres.ranges import KeyedTable

_USERS_FAULT: Final = ("0A", "21", "22", "42")
"""Classes of errors that the text itself causes: unknown names, wrong types, syntax."""


def condition(text: str) -> sql.Composable:
    """The text as one operand. The line break ends a comment that the text may end with."""
    return sql.SQL("({}\n)").format(sql.SQL(text))


def require_condition(session: psycopg.Connection[Any], table: KeyedTable, text: str) -> None:
    """Refuses what is no condition on a row of this table; nothing is executed.

    In parentheses alone `a) OR (b` would pass, and read rows outside the range it is joined with. Without them it is
    a syntax error; and what passes only without them, such as `a ORDER BY b`, is one with them. So what passes both
    is one expression.
    """
    for operand in (sql.SQL("{}\n").format(sql.SQL(text)), condition(text)):
        statement = sql.SQL("EXPLAIN SELECT FROM {} WHERE {}").format(table.source, operand)
        try:
            # The binary protocol takes one statement only, whatever semicolons the text has.
            session.execute(statement, binary=True)
        except psycopg.Error as error:
            if not (error.sqlstate or "").startswith(_USERS_FAULT):
                raise
            raise OptionsError(
                f"filter is {text!r}, which is no condition on a row of {table.name.quoted()}: "
                f"{' '.join((error.diag.message_primary or '').split())}"
            ) from None
