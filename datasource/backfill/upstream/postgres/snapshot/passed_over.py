"""Whether statements that were made for a table as it was would pass over rows of it as it is now, or give some twice.

Spark keeps the plan of a read for as long as the DataFrame or the temporary view, and the statements go by the table's
name alone: by then another table may have that name, or the same one have another shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from psycopg import sql

from backfill.errors import SchemaChangedError
from backfill.upstream.postgres.tables.ranges import KeyedTable
from backfill.vnode import WHOLE_TABLE, KeyRange

_IN_PARTITIONS: Final = "is partitioned"
_IN_ITSELF: Final = "holds its rows itself"

_WHERE_ROWS_ARE: Final = sql.SQL(
    """(SELECT CASE WHEN c.relkind = 'p' THEN {in_partitions}::text
                    WHEN EXISTS (SELECT FROM pg_catalog.pg_inherits WHERE inhparent = c.oid)
                    THEN 'has inheritance children' ELSE {in_itself}::text END
        FROM pg_catalog.pg_class c WHERE c.oid = pg_catalog.to_regclass({name})::oid)"""
)

_NULLABLE: Final = sql.SQL(
    """ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a
             WHERE a.attrelid = pg_catalog.to_regclass({name})::oid
               AND a.attname::text OPERATOR(pg_catalog.=) ANY ({key}::text[])
               AND (NOT a.attnotnull
                    OR EXISTS (SELECT FROM pg_catalog.pg_constraint
                               WHERE conrelid = a.attrelid AND contype = 'n' AND NOT convalidated
                                 AND a.attnum OPERATOR(pg_catalog.=) ANY (conkey)))
             ORDER BY a.attnum)"""
)


def shape_of(table: KeyedTable, ranges: Sequence[KeyRange]) -> tuple[sql.Composable, ...]:
    """Expressions for what `require_all_found` wants to know: where the table's rows are, which columns of its key may
    be null, and whether each of the ranges still ends behind its beginning.
    """
    name = sql.Literal(table.name.quoted())
    where = _WHERE_ROWS_ARE.format(
        name=name, in_partitions=sql.Literal(_IN_PARTITIONS), in_itself=sql.Literal(_IN_ITSELF)
    )
    nullable = _NULLABLE.format(name=name, key=sql.Literal(table.key_names))
    return where, nullable, sql.SQL(" AND ").join([sql.SQL("true"), *map(table.ascends, ranges)])


def require_all_found(
    table: KeyedTable, ranges: Sequence[KeyRange], where: str | None, nullable: Sequence[str], ascending: bool
) -> None:
    """Raises SchemaChangedError where statements that ask for these ranges would pass over rows, or give some twice.

    `where` is None for a table that the transaction does not see: then it sees no row of it either.
    """
    name = table.name.quoted()
    if where not in (_IN_PARTITIONS if table.partitioned else _IN_ITSELF, None):
        raise SchemaChangedError(
            f"the table {name} {where} now, unlike when it was described, so rows would be missed. load() the table "
            "again"
        )
    if nullable and any(item != WHOLE_TABLE for item in ranges):
        raise SchemaChangedError(
            f"the column {', '.join(nullable)} of the table {name} may be null now. It belonged to the key when the "
            "table was described, and the partitions are ranges of that key, so rows with a null would be in none. "
            "load() the table again"
        )
    if not ascending:
        # The ranges of all parts together lead from key to key: where each ends behind its beginning, none overlap.
        raise SchemaChangedError(
            f"the key of the table {name} has another order now, as when labels of an enum were reordered, and the "
            "partitions are ranges of that key, so rows would come twice or not at all. load() the table again"
        )
