"""Amounts of money, whose number of decimals is a setting of the session.

A `money` is stored as a whole number. The locale `lc_monetary` of the session that writes or reads it says how many of
its digits are decimals: a stored 500 is ¥500 to a session under ja_JP, and $5.00 to one under C, which has two. All
sessions of a stream read under C, because the database's own locale may be changed between two of them. So money is
refused where the database's own locale has another number of decimals; and so it is in a sink's table, which a stream's
amounts are written to under C.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from backfill.errors import UnsupportedTypeError
from backfill.upstream.postgres.description import TableDescription
from backfill.upstream.postgres.session.connection import Cursor, Session
from backfill.upstream.postgres.session.settings import MONETARY
from backfill.upstream.postgres.values.oids import Oid
from backfill.wording import in_option

_OWN: Final = """
    SELECT pg_catalog.set_config(name, reset_val, true) FROM pg_catalog.pg_settings WHERE name = 'lc_monetary'
"""
_DECIMALS: Final = "SELECT pg_catalog.scale('1'::pg_catalog.money::numeric)"
_BACK: Final = f"SELECT pg_catalog.set_config('{MONETARY[0]}', '{MONETARY[1]}', true)"
_WITH_MONEY: Final = """
    WITH RECURSIVE parts (name, type) AS (
        SELECT attname, atttypid FROM pg_catalog.pg_attribute WHERE attrelid = %(table)s AND attname = ANY (%(columns)s)
        UNION
        SELECT name, part.type
        FROM parts JOIN pg_catalog.pg_type t ON t.oid = parts.type CROSS JOIN LATERAL (
            VALUES (t.typbasetype), (t.typelem)
            UNION ALL SELECT rngsubtype FROM pg_catalog.pg_range WHERE t.oid IN (rngtypid, rngmultitypid)
            UNION ALL SELECT atttypid FROM pg_catalog.pg_attribute WHERE attrelid = t.typrelid AND attnum > 0
        ) AS part (type)
    )
    SELECT name::text FROM parts WHERE type = %(money)s ORDER BY name
"""
"""The columns that are of type money, or of arrays, domains, ranges or composite types that are made of it."""


DECIMALS_OF_C: Final = 2


def own_locale(cursor: Cursor) -> tuple[str, int]:
    """The database's own `lc_monetary`, and how many decimals money has under it; to be asked in a transaction."""
    cursor.execute(_OWN)
    (own,) = cursor.fetchone()
    cursor.execute(_DECIMALS)
    (decimals,) = cursor.fetchone()
    cursor.execute(_BACK)
    return own, decimals


def require_same_decimals(session: Session, table: TableDescription, columns: Sequence[str]) -> None:
    """Refuses columns whose amounts of money would be others under C than in the database."""
    asked = {"table": table.oid, "columns": list(columns), "money": Oid.MONEY.value}
    found = [name for (name,) in session.execute(_WITH_MONEY, asked).fetchall()]
    if not found:
        return
    with session.transaction():
        own, decimals = own_locale(session.cursor())
    if decimals != DECIMALS_OF_C:
        others = ", ".join(in_option(name) for name in columns if name not in found)
        raise UnsupportedTypeError(
            f"column {', '.join(found)} of {table.name.quoted()} holds money, and the currency of the database's "
            f"lc_monetary {own} has {decimals} decimals; expected {DECIMALS_OF_C}, by which a stream reads money. "
            f'Leave it out with .option("columns", "{others}"), or make it a number: ALTER TABLE '
            f"{table.name.quoted()} ALTER COLUMN … TYPE numeric, which rewrites the table under a lock"
        )
