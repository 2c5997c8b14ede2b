"""How large the table is now, as far as that can be told by reading little or nothing of it."""

from __future__ import annotations

from typing import Final

from psycopg import sql

from backfill.upstream import TableSize
from backfill.upstream.postgres.connection import LOCK_TIMEOUT, Session, one_row
from backfill.upstream.postgres.description import TableDescription
from backfill.upstream.postgres.ranges import KeyedTable

SAMPLED_BYTES: Final = 1 << 20
"""Of how much of a table that was never analyzed the rows are counted: of some hundred pages."""

# Like the planner: the density seen by the last ANALYZE times the present size. But not less than one row a page: the
# table may have been all but empty then, and batches would be of as few rows. 100 bytes a row before the first ANALYZE.
_SIZE: Final = """
    SELECT coalesce(pg_catalog.sum(CASE WHEN s.analyzed
                             THEN greatest(c.reltuples::float8 / c.relpages::float8, 1::float8) * s.bytes
                                  / pg_catalog.current_setting('block_size')::float8
                             ELSE s.bytes / 100::float8 END), 0)::int8,
           coalesce(pg_catalog.sum(pg_catalog.pg_table_size(c.oid)), 0)::int8,
           coalesce(pg_catalog.sum(s.bytes), 0)::int8,
           coalesce(pg_catalog.sum(s.bytes) FILTER (WHERE NOT s.analyzed), 0)::int8
    FROM pg_catalog.pg_class c
    CROSS JOIN LATERAL (SELECT pg_catalog.pg_relation_size(c.oid)::float8 AS bytes,
                               c.reltuples >= 0::real AND c.relpages > 0 AS analyzed) s
    WHERE c.oid = %(table)s AND c.relkind = 'r'
       OR c.oid IN (SELECT relid::oid FROM pg_catalog.pg_partition_tree(%(table)s::oid::regclass) WHERE isleaf)
"""


def read_size(session: Session, table: TableDescription) -> TableSize:
    """A guess at the size of the table, summed up over its partitions."""
    with session.transaction():
        # The size of a file is not told while somebody has the table for himself.
        session.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(LOCK_TIMEOUT)))
        found, size, heap, unknown = one_row(session.execute(_SIZE, {"table": table.oid}))
        if unknown > heap / 2:
            found = _sampled(session, table, heap)
    rows = max(1, found)
    return TableSize(rows, max(1, size // rows))


def _sampled(session: Session, table: TableDescription, heap: int) -> int:
    """About how many rows there are in so many bytes, by a sample: of rows of 5 KB there are 50 times fewer than of
    those of 100 bytes, and a batch of as many would take 50 times the memory it may. One row a page as well at the
    least: the pages that were drawn may be empty.
    """
    source = KeyedTable(table.name, table.partitioned, table.key).source
    share = min(1.0, SAMPLED_BYTES / heap)
    sampled = sql.SQL("TABLESAMPLE SYSTEM ({})").format(sql.Literal(100 * share))
    statement = sql.SQL("SELECT pg_catalog.count(*), pg_catalog.current_setting('block_size')::int4 FROM {} {}")
    counted, page = one_row(session.execute(statement.format(source, sampled)))
    return max(int(counted / share), heap // int(page))
