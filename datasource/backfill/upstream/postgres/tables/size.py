"""How large the table is now, as far as that can be told by reading little or nothing of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from psycopg import sql

from backfill.upstream import TableSize
from backfill.upstream.postgres.description import TableDescription
from backfill.upstream.postgres.session import locks
from backfill.upstream.postgres.session.connection import Session

SAMPLED_BYTES: Final = 1 << 20
"""Where there are no statistics, rows are counted in so much of the table: some hundred pages."""

# Like the planner: the density seen by the last ANALYZE times the present size; 100 bytes a row before the first one.
# Less than a row on each page is not believed: the table may have been all but empty then, and filled since.
_SIZE: Final = """
    SELECT coalesce(pg_catalog.sum(CASE WHEN s.analyzed
                             THEN c.reltuples::float8 / c.relpages::float8 * s.bytes
                                  / pg_catalog.current_setting('block_size')::float8
                             ELSE s.bytes / 100::float8 END), 0)::int8,
           coalesce(pg_catalog.sum(pg_catalog.pg_table_size(c.oid)), 0)::int8,
           coalesce(pg_catalog.sum(s.bytes), 0)::int8,
           coalesce(pg_catalog.sum(s.bytes) FILTER (WHERE NOT s.analyzed), 0)::int8,
           pg_catalog.current_setting('block_size')::int4
    FROM pg_catalog.pg_class c
    CROSS JOIN LATERAL (SELECT pg_catalog.pg_relation_size(c.oid)::float8 AS bytes,
                               c.relpages > 0 AND c.reltuples >= c.relpages::real AS analyzed) s
    WHERE c.oid = {table} AND c.relkind = 'r'
       OR c.oid IN (SELECT relid::oid FROM pg_catalog.pg_partition_tree({table}::oid::regclass) WHERE isleaf)
"""


@dataclass(frozen=True, slots=True)
class StoredSize(TableSize):
    """A guess at the size of a table, and how it is stored."""

    pages: int
    """How many pages rows lie in. Large values have pages of their own, which are none of these, and may be most."""


def read_size(session: Session, table: TableDescription) -> StoredSize:
    """The sizes of all partitions in sum. To tell the size of a file the server waits for whoever has locked it."""
    [(found, size, heap, unknown, page)] = locks.asked(session, sql.SQL(_SIZE).format(table=sql.Literal(table.oid)))
    if unknown > heap / 10:
        found = _sampled(session, table, heap, heap // page)
    rows = max(1, found)
    return StoredSize(rows, max(1, size // rows), max(1, heap // page))


def _sampled(session: Session, table: TableDescription, heap: int, pages: int) -> int:
    """About how many rows there are in so many bytes and pages, by a sample; one a page where those drawn are empty.

    If rows of 5 KB were taken for rows of 100 bytes, a batch would have 50 times as many as it may, and take 50 times
    the memory.
    """
    share = min(1.0, SAMPLED_BYTES / heap)
    sampled = sql.SQL("TABLESAMPLE SYSTEM ({})").format(sql.Literal(100 * share))
    statement = sql.SQL("SELECT pg_catalog.count(*) FROM {} {}")
    rows = table.name.own_rows(partitioned=table.partitioned)
    [(counted,)] = locks.asked(session, statement.format(rows, sampled))
    return int(counted / share) if counted else pages
