"""How large the table is now, as far as that can be told without reading it."""

from __future__ import annotations

from typing import Final

from psycopg import sql

from backfill.upstream import TableSize
from backfill.upstream.postgres.connection import LOCK_TIMEOUT, Session, one_row

# Like the planner: the density seen by the last ANALYZE times the present size; 100 bytes a row before the first.
_SIZE: Final = """
    SELECT coalesce(pg_catalog.sum(CASE WHEN c.reltuples >= 0::real AND c.relpages > 0
                             THEN c.reltuples::float8 / c.relpages::float8 * s.bytes
                                  / pg_catalog.current_setting('block_size')::float8
                             ELSE s.bytes / 100::float8 END), 0)::int8,
           coalesce(pg_catalog.sum(pg_catalog.pg_table_size(c.oid)), 0)::int8
    FROM pg_catalog.pg_class c
    CROSS JOIN LATERAL (SELECT pg_catalog.pg_relation_size(c.oid)::float8 AS bytes) s
    WHERE c.oid = %(table)s AND c.relkind = 'r'
       OR c.oid IN (SELECT relid::oid FROM pg_catalog.pg_partition_tree(%(table)s::oid::regclass) WHERE isleaf)
"""


def read_size(session: Session, oid: int) -> TableSize:
    """A guess at the size of the table with this OID, summed up over its partitions."""
    with session.transaction():
        # The size of a file is not told while somebody has the table for himself.
        session.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(LOCK_TIMEOUT)))
        found, size = one_row(session.execute(_SIZE, {"table": oid}))
    rows = max(1, found)
    return TableSize(rows, max(1, size // rows))
