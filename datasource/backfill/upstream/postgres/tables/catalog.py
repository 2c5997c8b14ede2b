"""What PostgreSQL's catalog says of the table to stream; a table that cannot be streamed is refused by name.

It is read in several queries: whoever needs them to agree with each other runs them in one REPEATABLE READ transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from psycopg.rows import class_row

from backfill.upstream.postgres.description import (
    EXPRESSION,
    STORED_ARE_PUBLISHED,
    CollationDescription,
    ColumnDescription,
    Generated,
    QualifiedName,
    TableDescription,
)
from backfill.upstream.postgres.session.connection import Session, one_row
from backfill.upstream.postgres.tables.column_types import read_types, resolve
from backfill.upstream.postgres.tables.dbtable import find_table
from backfill.upstream.postgres.tables.identity import choose_index, read_indexes, read_key, require_never_null
from backfill.upstream.postgres.tables.partitions import read_partitions

_COLUMNS: Final = f"""
    SELECT a.attname AS name, a.attnum::int AS attnum, a.atttypid::int8 AS type_oid, a.atttypmod AS typmod,
           pg_catalog.format_type(a.atttypid, a.atttypmod) AS declared,
           a.attcollation::int8 AS collation_oid, a.attnotnull AS not_null, a.attgenerated::text AS generated,
           pg_catalog.has_column_privilege(a.attrelid, a.attnum, 'SELECT') AS readable,
           {EXPRESSION} AS expression
    FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attnum
"""

# pg_database.datlocprovider came with version 15; before, every default collation was libc's. All collations of the
# built-in provider compare code points, which in UTF-8 is byte order; of libc's only C and POSIX are sure to: C.UTF-8
# is what the operating system makes of it.
_COLLATIONS: Final = """
    SELECT c.oid::int8 AS oid, n.nspname AS schema, c.collname AS name,
           pg_catalog.current_setting('server_encoding') = 'UTF8' AND (
               p.provider = 'b' OR p.provider = 'c' AND p.locale IN ('C', 'POSIX')) AS byte_order
    FROM pg_catalog.pg_collation c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.collnamespace
    JOIN pg_catalog.pg_database d ON d.datname = pg_catalog.current_database()
    CROSS JOIN LATERAL (
        SELECT CASE WHEN c.collprovider <> 'd' THEN c.collprovider::text
                    ELSE coalesce(pg_catalog.to_jsonb(d) ->> 'datlocprovider'::text, 'c') END AS provider,
               CASE WHEN c.collprovider = 'd' THEN d.datcollate ELSE c.collcollate END AS locale) p
    WHERE c.oid = ANY (%s::oid[])
"""


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    attnum: int
    type_oid: int
    typmod: int
    declared: str
    collation_oid: int
    not_null: bool
    generated: str
    readable: bool
    expression: str | None


def read_table(session: Session, dbtable: str, *, follows: bool = True) -> TableDescription:
    """Describes the table that `dbtable` names, or raises TableError with what to do about it.

    `follows`: whether its changes are read as well, which the log has to have.
    Columns that the role may not read or that the log does not carry are described here, and refused by
    `selection.select_columns` where they are asked for.
    """
    table = find_table(session, dbtable, follows=follows)
    indexes = read_indexes(session, table.oid)
    with session.cursor(row_factory=class_row(_Column)) as cursor:
        rows = cursor.execute(_COLUMNS, [table.oid]).fetchall()
    collations = _read_collations(
        session,
        {row.collation_oid for row in rows} | {oid for index in indexes for oid in index.collations},
    )
    columns = _described(session, rows, collations)
    index = choose_index(table, columns, indexes, follows=follows)
    described = TableDescription(
        oid=table.oid,
        name=table.qualified,
        role=table.role,
        partitioned=table.kind == "p",
        replica_identity=table.replica_identity,
        columns=columns,
        key=read_key(session, index, columns, collations),
    )
    require_never_null(session, table, described.key_names)
    if described.partitioned and follows:
        (state,) = one_row(session.execute("SELECT pg_catalog.pg_current_snapshot()::text"))
        listed = tuple(each.oid for each in read_partitions(session, described))
        return replace(described, partitions=listed, listed_in=state)
    return described


def _described(
    session: Session, rows: Sequence[_Column], collations: Mapping[int, CollationDescription]
) -> tuple[ColumnDescription, ...]:
    types = read_types(session, [row.type_oid for row in rows])
    return tuple(
        ColumnDescription(
            name=row.name,
            attnum=row.attnum,
            type_oid=row.type_oid,
            typmod=row.typmod,
            declared=row.declared,
            type=resolve(types, row.type_oid, row.typmod),
            collation=collations.get(row.collation_oid),
            not_null=row.not_null,
            generated=Generated(row.generated),
            logged=_logged(Generated(row.generated), session.info.server_version),
            readable=row.readable,
            expression=row.expression,
        )
        for row in rows
    )


def _logged(generated: Generated, server_version: int) -> bool:
    stored = generated is Generated.STORED and server_version >= STORED_ARE_PUBLISHED
    return generated is Generated.NO or stored


def _read_collations(session: Session, oids: Iterable[int]) -> dict[int, CollationDescription]:
    rows = session.execute(_COLLATIONS, [sorted(set(oids) - {0})]).fetchall()
    return {
        oid: CollationDescription(QualifiedName(schema, name), byte_order) for oid, schema, name, byte_order in rows
    }
