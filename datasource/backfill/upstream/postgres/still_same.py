"""Whether the table is still the one that the stream reads, as far as the change log does not tell."""

from __future__ import annotations

from typing import Any, Final

from backfill.errors import SchemaChangedError, TableError
from backfill.upstream.postgres.columns import another_column
from backfill.upstream.postgres.connection import Session, one_row
from backfill.upstream.postgres.description import ColumnDescription, QualifiedName, TableDescription
from backfill.upstream.postgres.oids import Oid
from backfill.upstream.postgres.relation import WIDENED
from backfill.upstream.postgres.table import Table, listed_collations
from backfill.wording import FRESH_START

_AS_IT_IS: Final = """
    SELECT pg_catalog.to_regclass(%s)::oid::int8, coalesce(pg_catalog.jsonb_object_agg(
               a.attname, pg_catalog.jsonb_build_array(a.atttypid::int8, a.atttypmod, c.name)), '{}')
    FROM pg_catalog.pg_attribute a
    LEFT JOIN (SELECT c.oid, pg_catalog.jsonb_build_array(n.nspname, c.collname) AS name
               FROM pg_catalog.pg_collation c JOIN pg_catalog.pg_namespace n ON n.oid = c.collnamespace) c
           ON c.oid = a.attcollation
    WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
"""

_IDENTITY: Final = """
    SELECT pg_catalog.to_regclass(%(name)s)::oid IS NOT DISTINCT FROM %(oid)s::oid,
           coalesce((SELECT pg_catalog.jsonb_object_agg(attname, pg_catalog.jsonb_build_array(
                               attnum, atttypid::int8, atttypmod,
                               (SELECT pg_catalog.md5(d.adbin::text) FROM pg_catalog.pg_attrdef d
                                WHERE d.adrelid = attrelid AND d.adnum = attnum AND attgenerated <> '')))
                     FROM pg_catalog.pg_attribute
                     WHERE attrelid = %(oid)s AND attnum > 0 AND NOT attisdropped), '{}'),
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

_NAME: Final = """
    SELECT n.nspname, c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = %s
"""


def require_unchanged(session: Session, table: Table, collations: str) -> None:
    """Refuses to read on where the table is another one by now, a column that is carried has another type, or the key
    other collations than these.

    Between two chunks nothing else would notice: the change log describes the table only when a row of it changes.
    """
    described = table.description
    oid, found = one_row(session.execute(_AS_IT_IS, [described.name.quoted(), described.oid]))
    now: dict[str, Any] = found
    if oid != described.oid:
        raise _another_table(session, described)
    gone = (None, None)
    changed = [item.name for item in table.carried if not _is_of_its_type(item, *now.get(item.name, gone)[:2])]
    if changed:
        raise _lost(described, changed)
    names = [item.column.name for item in described.key]
    sorted_now = listed_collations((name, QualifiedName(*now[name][2]) if now[name][2] else None) for name in names)
    if sorted_now != collations:
        raise SchemaChangedError(
            f"the key of {described.name.quoted()} was given another collation since the stream began ({sorted_now}, "
            f"expected {collations}), so its rows are in another order, and what has been read cannot be told from "
            "what has not. Give it back the collation that it had; or, where all rows have been read once, start the "
            f"query again; or start over with {FRESH_START}"
        )


def _is_of_its_type(column: ColumnDescription, type_oid: int | None, typmod: int | None) -> bool:
    """A varchar may get another length: its values stay as they are."""
    return type_oid == column.type_oid and (typmod == column.typmod or type_oid == Oid.VARCHAR)


def require_same_identity(session: Session, table: Table) -> None:
    """Refuses to read on where the table, its key or a column is not the one any more that it was, by the same name.

    The change log goes by the table's OID and the columns' names. It has no word of a table that got this one's name,
    of rows that share what was a key, or of the values that a column lost which was dropped and added again.
    """
    described = table.description
    key = sorted(item.column.attnum for item in described.key)
    asked = {"name": described.name.quoted(), "oid": described.oid, "key": key}
    now: dict[str, tuple[int, int, int, str | None]]
    same, now, unique = one_row(session.execute(_IDENTITY, asked))
    if not same:
        raise _another_table(session, described)
    gone = [column.name for column in table.carried if column.name not in now]
    if gone:
        raise _lost(described, gone)
    there = {column: now[column.name] for column in table.carried}
    others = [column.name for column, (attnum, *_) in there.items() if attnum != column.attnum]
    if others:
        raise another_column(described.name, others)
    # In the change log a narrower type may be of the time before this process began.
    narrowed = [column.name for column, (_, type_oid, *_) in there.items() if (type_oid, column.type_oid) in WIDENED]
    if narrowed:
        raise _lost(described, narrowed)
    # Any other type is noticed there. The values of a column that is generated no more stay as they are.
    rewritten = [
        column.name
        for column, (_, type_oid, typmod, expression) in there.items()
        if (type_oid == column.type_oid and not _is_of_its_type(column, type_oid, typmod))
        or expression not in (None, column.expression)
    ]
    if rewritten:
        raise SchemaChangedError(
            f"column {', '.join(rewritten)} of {described.name.quoted()} was given another precision, scale, length "
            "or expression, which may have changed the values of all rows, of which the change log tells nothing. "
            "Start the query again, and have the rows read again with backfill re-backfill; or start over with "
            f"{FRESH_START}"
        )
    if not unique:
        names = ", ".join(item.column.name for item in described.key)
        raise SchemaChangedError(
            f"the key ({names}) of {described.name.quoted()} is not unique any more: its primary key or unique index "
            "was dropped, has other columns now or was made deferrable, or its columns may be null, so rows cannot be "
            f"told apart by it. Start over with {FRESH_START}"
        )


def _lost(described: TableDescription, columns: list[str]) -> SchemaChangedError:
    return SchemaChangedError(
        f"column {', '.join(columns)} of {described.name.quoted()} was dropped, renamed or given another type since "
        "the query began. Start the query again, without what is gone in the option columns: it goes on with the "
        "columns of now, and backfill re-backfill reads the rows again that came before. Where that is refused, start "
        f"over with {FRESH_START}"
    )


def _another_table(session: Session, described: TableDescription) -> TableError:
    name = described.name.quoted()
    found = session.execute(_NAME, [described.oid]).fetchone()
    if found is None:
        return TableError(
            f"{name} is not the table any more that the stream began with, which was dropped. Start over with "
            f"{FRESH_START}"
        )
    now = QualifiedName(*found)
    left = (
        f". But where publicationName names a publication of all tables in schema {described.name.schema} alone, and "
        f"the table was moved out of that, its changes since then are not in the log: start over with {FRESH_START}"
    )
    return TableError(
        f"{name} is not the table any more that the stream began with: that is {now.quoted()} by now. Set the option "
        f"dbtable to {now.quoted()}, and start the query again; it goes on where it stopped"
        f"{left if now.schema != described.name.schema else ''}"
    )
