"""The options `filter` and `snapshotFilter`: conditions in the user's own SQL, made part of our statements."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

import psycopg
from psycopg import sql

from backfill.errors import OptionsError
from backfill.options.texts import unquoted
from backfill.upstream.postgres.description import ColumnDescription
from backfill.upstream.postgres.session import locks
from backfill.upstream.postgres.session.connection import Session
from backfill.upstream.postgres.tables.ranges import KeyedTable, operand

logger = logging.getLogger("backfill")

_USERS_FAULT: Final = ("0A", "21", "22", "42", "08P01")
"""Classes of errors that the text itself causes: unknown names, wrong types, syntax; and a parameter such as $1."""

_NOT_OF_THE_ROW: Final = ("42P17", "0A000")
"""How the predicate of an index is refused, for a function that is not immutable; for a subselect or system column."""

_MOMENT: Final = re.compile(r"(?<![a-z])(?:now|today|tomorrow|yesterday)(?![a-z])", re.IGNORECASE)
"""Words that the input of dates and times takes for a moment (PostgreSQL manual, "Special Values"); no function is
called, so they pass for immutable.
"""

_TOKEN: Final = re.compile(
    r"""--[^\n]*|/\*.*?\*/|"(?:[^"]|"")*"|\b[eE]'(?P<escaped>(?:[^'\\]|\\.|'')*)'|'(?P<plain>(?:[^']|'')*)'"""
    r"""|\$(?P<tag>\w*)\$(?P<dollar>.*?)\$(?P=tag)\$""",
    re.DOTALL,
)
"""A comment, a name or a literal."""

_WORD: Final = re.compile(r'"(?:[^"]|"")+"|[\w$]+')

_LITERALS: Final = ("escaped", "plain", "dollar")
"""The groups of which a literal has one; comments and names have none."""

_PREDICATE: Final = """
    WITH RECURSIVE predicate AS MATERIALIZED (
        SELECT coalesce(pg_catalog.pg_get_expr(indpred, indrelid), '') AS text, indpred::text AS tree
        FROM pg_catalog.pg_index WHERE indrelid = %s::pg_catalog.regclass::pg_catalog.oid
    ), taken (type) AS (
        SELECT found[1]::pg_catalog.oid
        FROM predicate, pg_catalog.regexp_matches(tree, ':consttype ([0-9]+)', 'g') AS found
        UNION
        SELECT part FROM taken JOIN pg_catalog.pg_type AS t ON t.oid = type, LATERAL (
            VALUES (t.typelem), (t.typbasetype)
            UNION ALL SELECT rngsubtype FROM pg_catalog.pg_range WHERE t.oid IN (rngtypid, rngmultitypid)
            UNION ALL SELECT atttypid FROM pg_catalog.pg_attribute WHERE attrelid = t.typrelid AND attnum > 0
        ) AS inside (part)
    )
    SELECT text, EXISTS (SELECT FROM taken JOIN pg_catalog.pg_type AS t ON t.oid = type WHERE typcategory = 'D')
    FROM predicate
"""
"""How the server has understood the condition; and whether one of its values is a date or a time, or contains one."""

_PASSES: Final = ("08", "57", "55P03")
"""Classes of errors that concern the session and not the statement; and the state for a table that is locked."""


def columns_named(condition: str, columns: Iterable[ColumnDescription]) -> tuple[ColumnDescription, ...]:
    """The columns whose names are words of the condition outside its literals: all that it depends on, or more."""
    names = _TOKEN.sub(lambda token: token[0] if token[0].startswith('"') else " ", condition)
    words = {unquoted(word) for word in _WORD.findall(names)}
    words |= {word.lower() for word in words}
    return tuple(column for column in columns if column.name in words)


def require_condition(session: Session, table: KeyedTable, option: str, text: str) -> None:
    """Refuses what is no condition on a row of this table; nothing is executed.

    In parentheses alone `a) OR (b` would pass, and read rows outside the range it is joined with. Without them it is
    a syntax error; and what passes only without them, such as `a ORDER BY b`, is one with them. So what passes both
    is one expression.
    """
    try:
        with session.transaction():
            session.execute(locks.IN_TRANSACTION)
            for each in (sql.SQL("{}\n").format(sql.SQL(text)), operand(text)):
                statement = sql.SQL("EXPLAIN SELECT FROM {} WHERE {}").format(table.source, each)
                # The binary protocol takes one statement only, whatever semicolons the text has.
                session.execute(statement, binary=True)
    except psycopg.Error as error:
        if not (error.sqlstate or "").startswith(_USERS_FAULT):
            raise
        raise OptionsError(
            f"{option} is {text!r}, which is not a condition on a row of {table.name.quoted()}: {_reason(error)}"
        ) from None


def require_row_condition(session: Session, table: KeyedTable, option: str, text: str) -> None:
    """As `require_condition`; also refuses what depends on more than the row: the time, chance, settings, other rows.

    Rows are counted in one session and read in others, and the sink keeps a row for which the condition held as long
    as the row does not change. The server judges, by its rule for the predicate of an index: one is made over a
    temporary table like this one, and all of it rolled back. Where the role may not do that this only warns; then the
    stream ends where rows are not as many as were counted.
    """
    require_condition(session, table, option, text)
    try:
        with session.transaction(force_rollback=True):
            session.execute(locks.IN_TRANSACTION)
            # Of the same name, so that the text may name the table.
            like = sql.SQL("{}.{}").format(sql.Identifier("pg_temp"), sql.Identifier(table.name.name))
            session.execute(sql.SQL("CREATE TEMPORARY TABLE {} (LIKE {})").format(like, table.name.identifier()))
            key = sql.Identifier(table.key[0].column.name)
            statement = sql.SQL("CREATE INDEX ON {} ({}) WHERE {}").format(like, key, operand(text))
            session.execute(statement, binary=True)
            [(understood, has_times)] = session.execute(_PREDICATE, [like.as_string(session)]).fetchall()
    except psycopg.Error as error:
        if error.sqlstate in _NOT_OF_THE_ROW:
            raise _not_of_the_row(option, text, _reason(error)) from None
        if session.closed or error.sqlstate is None or error.sqlstate.startswith(_PASSES):
            raise
        logger.warning("whether %s depends on a row's values alone could not be checked: %s", option, _reason(error))
        return
    # The server has replaced such a word by a value of this moment; compared with a text it is still there.
    taken = _moments(text) - _moments(understood)
    if taken and has_times:
        raise _not_of_the_row(option, text, f"the server reads '{min(taken)}' as a time counted from the present")


def _moments(condition: str) -> Counter[str]:
    """The words that may stand for a moment, in the condition's literals."""
    literals = ("".join(filter(None, found.group(*_LITERALS))) for found in _TOKEN.finditer(condition))
    return Counter(word.lower() for literal in literals for word in _MOMENT.findall(literal))


def _not_of_the_row(option: str, text: str, found: str) -> OptionsError:
    return OptionsError(
        f"{option} is {text!r}, which depends on more than a row's values: {found}. Leave out subselects, system "
        "columns, functions of time or chance, and what depends on a session's settings, such as its time zone; "
        "compare with literals of the column's type"
    )


def _reason(error: psycopg.Error) -> str:
    return " ".join((error.diag.message_primary or "").split())
