"""Whether the table is still the one that the stream reads, as far as the change log does not tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from psycopg import sql

from backfill.errors import SchemaChangedError, TableError
from backfill.upstream.postgres.description import QualifiedName, TableDescription
from backfill.upstream.postgres.session.connection import Asked, Session, one_row
from backfill.upstream.postgres.tables.columns import (
    DEFINITIONS,
    is_of_its_type,
    lost,
    require_as_described,
    require_there,
)
from backfill.upstream.postgres.tables.table import Table, listed_collations
from backfill.wording import FRESH_START

_AS_IT_IS: Final = """
    SELECT pg_catalog.to_regclass(%s)::oid::int8, coalesce(pg_catalog.jsonb_object_agg(
               a.attname, pg_catalog.jsonb_build_array(a.attnum, a.atttypid::int8, a.atttypmod, c.name)), '{}')
    FROM pg_catalog.pg_attribute a
    LEFT JOIN (SELECT c.oid, pg_catalog.jsonb_build_array(n.nspname, c.collname) AS name
               FROM pg_catalog.pg_collation c JOIN pg_catalog.pg_namespace n ON n.oid = c.collnamespace) c
           ON c.oid = a.attcollation
    WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
"""

_IDENTITY: Final = sql.SQL(
    """
    SELECT pg_catalog.to_regclass(%(name)s)::oid IS NOT DISTINCT FROM %(oid)s::oid,
           {definitions},
           EXISTS (SELECT FROM pg_catalog.pg_index i
                   WHERE i.indrelid = %(oid)s
                     AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL
                     AND %(key)s::int2[] OPERATOR(pg_catalog.=) ARRAY(
                         SELECT k FROM pg_catalog.unnest(i.indkey::int2[]) WITH ORDINALITY AS u(k, place)
                         WHERE place <= i.indnkeyatts ORDER BY k))
           AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute
                           WHERE attrelid = %(oid)s AND attnum = ANY (%(key)s::int2[]) AND NOT attnotnull)
           AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint
                           WHERE conrelid = %(oid)s AND contype = 'n' AND NOT convalidated
                             AND conkey OPERATOR(pg_catalog.<@) %(key)s::int2[])
    """
).format(definitions=DEFINITIONS.format(sql.Placeholder("oid")))

_NAME: Final = """
    SELECT n.nspname, c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = %s
"""


def require_unchanged(session: Session, table: Table, collations: str) -> None:
    """Refuses to read on where the table is another one by now, a column that is read is another one or has another
    type, or the key has other collations than these.

    Between two chunks nothing else would notice: the change log describes the table only when a row of it changes.
    """
    described = table.description
    oid, found = one_row(session.execute(_AS_IT_IS, [described.name.quoted(), described.oid]))
    now: dict[str, Any] = found
    if oid != described.oid:
        raise _another_table(session, described)
    changed = [item for item in table.read if item.name not in now or not is_of_its_type(item, *now[item.name][1:3])]
    carried = [item.name for item in table.carried if item in changed]
    if carried:
        raise lost(described.name, carried)
    if changed:
        raise _chosen_by(described, [item.name for item in changed])
    require_there(described.name, table.filtering, now)
    sorted_now = listed_collations(
        (name, QualifiedName(*now[name][3]) if now[name][3] else None) for name in described.key_names
    )
    if sorted_now != collations:
        raise SchemaChangedError(
            f"the key of {described.name.quoted()} got another collation since the stream began ({sorted_now}, "
            f"expected {collations}), so its rows are in another order, and it is no longer known which have been "
            "read. Give the key back its collation, or the collation and its schema back their names; or, if all "
            f"rows have been read once, start the query again; or start over with {FRESH_START}"
        )


def ask_identity(session: Session, table: Table) -> Asked:
    """Asks for what `require_same_identity` looks at."""
    described = table.description
    key = sorted(item.column.attnum for item in described.key)
    return session.execute(_IDENTITY, {"name": described.name.quoted(), "oid": described.oid, "key": key})


def require_same_identity(session: Session, table: Table, asked: Asked, *, all_read: bool) -> None:
    """Refuses to read on where the table, its key or a column is no longer what had that name when reading began.

    The change log goes by the table's OID and the columns' names. It has no word of a table that got this one's name,
    of rows that share what was a key, or of the values that a column lost by being dropped and added again; nor of the
    values that another type gave it, until the next row. Unless `all_read`, that row is waited for: what was written
    before it can be read by this process, and maybe by none that comes after.
    """
    described = table.description
    same, now, unique = one_row(asked)
    if not same:
        raise _another_table(session, described)
    require_as_described(described.name, table.carried, now, all_read=all_read)
    if not unique:
        raise SchemaChangedError(
            f"the key ({', '.join(described.key_names)}) of {described.name.quoted()} is no longer unique: its "
            "primary key or unique index was dropped, has other columns now or was made deferrable, or its columns "
            f"may be null, so it no longer identifies rows. Start over with {FRESH_START}"
        )


def _chosen_by(described: TableDescription, columns: Sequence[str]) -> SchemaChangedError:
    return SchemaChangedError(
        f"column {', '.join(columns)} of {described.name.quoted()}, by which snapshotFilter chooses rows, was "
        "dropped, renamed or given another type since the query began. If it was renamed, give it back its name, and "
        "start the query again. If it was dropped, the rows that are left cannot be chosen in the same way: start "
        f"over with {FRESH_START}"
    )


def _another_table(session: Session, described: TableDescription) -> TableError:
    name = described.name.quoted()
    found = session.execute(_NAME, [described.oid]).fetchone()
    if found is None:
        return TableError(
            f"the table that the stream began with, {name}, was dropped. If another table has its name now, start "
            f"over with {FRESH_START}; else end the stream with backfill drop, because its slot keeps log"
        )
    now = QualifiedName(*found)
    left = (
        f". But if publicationName names a publication FOR TABLES IN SCHEMA {described.name.schema} alone, the "
        f"changes since the table left that schema are not in the log: start over with {FRESH_START}"
    )
    return TableError(
        f"{name} is no longer the table that the stream began with, which is {now.quoted()} now. Set the option "
        f"dbtable to {now.quoted()}, and start the query again; it goes on where it "
        f"stopped{(left if now.schema != described.name.schema else '')}"
    )
