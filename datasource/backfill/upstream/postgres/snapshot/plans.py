"""How the server is to plan the statements that read the table: settings for a transaction, until it ends.

An index leads from key to key. Where the rows lie in the order of their keys, that reads the table's pages one after
the other. Where they lie in another order, as with random uuids, each row takes a page of its own, and each of these
pages is read as often as it has rows. A bitmap scan reads every page once, in the order of the pages, some ahead, and
leaves the rows to be sorted. Of a table of 8 million rows in the system's memory, 1 million in key order took the
server 1.4 s by a bitmap instead of 4.8 s, and 250,000 of them from the disk 2.6 s instead of 35 s.

In which order rows lie is known for each column by itself (`correlation` in `pg_stats`), and the planner goes by the
first column of the key. But rows that lie in the order of their tenants may be in any order within one: with random
uuids as the second column, half a million of 4 million rows took 11 s by the index, which the planner took for cheaper,
and 1.7 s by a bitmap. So the cost of a page that it is told makes up for the first column's correlation, where many
pages of rows have the same value in that column.
"""

from __future__ import annotations

from typing import Final, LiteralString

from psycopg import sql

from backfill.upstream.postgres.tables.partitions import with_partitions
from backfill.upstream.postgres.tables.ranges import KeyedTable

SORT_MEMORY: Final = "64MB"
"""Memory for a reader's bitmap and its sort. A sort that takes more goes to the server's disk; 256 MB was no faster."""

LEAST_TEMP_FILES: Final = 4 << 30
"""Under a lower `temp_file_limit` nothing is sorted. A batch is 1 GB unless `maxBytesPerTrigger` says otherwise."""

READ_AHEAD: Final = 16
"""How many pages of a bitmap are asked for ahead: the default of version 18. Up to 17 it was 1."""

SCATTERED: Final = 0.7
"""Rows with a correlation below this, up or down, are taken to lie in another order than their keys."""

PAGES_ALIKE: Final = 1000
"""The order of a further column matters where rows that are alike in those before it fill so many pages: fewer stay in
the server's memory while they are read.
"""

ORDER_SEEN: Final = 0.02
"""The least correlation of rows in order that is told from rows in any order: of those, the sample of 30,000 rows that
ANALYZE takes shows some 0.006.
"""

PAGES_LOOKED_AT: Final = 4
"""If one page in so many may hold a row that not everybody sees, an index is not the best way to count."""


# The statistics are found by the values of the names, or those of all the database's tables would be looked through.
_ORDERS: Final = """
    (SELECT place, correlation, correlation < {scattered}::float8 * chance AND chance >= {seen}::float8 AS scattered,
            relpages::float8 * largest >= {pages}::float8 AS alike
     FROM (SELECT n.place, pg_catalog.abs(s.correlation)::float8 AS correlation, c.relpages,
                  pg_catalog.min(one.largest) OVER before AS largest,
                  coalesce(pg_catalog.exp(pg_catalog.sum(pg_catalog.ln(one.chance)) OVER before), 1::float8) AS chance
           FROM pg_catalog.pg_class AS c
           CROSS JOIN pg_catalog.unnest({names}::text[]) WITH ORDINALITY AS n(name, place)
           JOIN pg_catalog.pg_stats AS s ON s.schemaname = {schema}::name AND s.tablename = {own}::name
                AND s.attname::text = n.name AND NOT s.inherited
           CROSS JOIN LATERAL (
               SELECT nullif(CASE WHEN s.n_distinct < 0::float4 THEN (- s.n_distinct)::float8 * c.reltuples::float8
                                  ELSE s.n_distinct::float8 END, 0::float8) AS count) AS value
           CROSS JOIN LATERAL (
               SELECT pg_catalog.count(*)::float8 AS count, coalesce(pg_catalog.sum(f::float8), 0::float8) AS share,
                      coalesce(pg_catalog.sum(f::float8 * f::float8), 0::float8) AS chance
               FROM pg_catalog.unnest(s.most_common_freqs) AS f) AS common
           CROSS JOIN LATERAL (
               SELECT greatest(s.most_common_freqs[1]::float8, 1::float8 / value.count) AS largest,
                      greatest(common.chance + pg_catalog.power(1::float8 - common.share, 2::float8)
                               / greatest(value.count - common.count, 1::float8), 1e-9::float8) AS chance) AS one
           WHERE c.oid = pg_catalog.to_regclass({name})::oid
           WINDOW before AS (ORDER BY n.place ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)) AS of_columns)
"""


def _set(**settings: str) -> str:
    """The statement that gives each of these settings the value of its SQL expression."""
    calls = [f"pg_catalog.set_config('{name}', {value}, true)" for name, value in settings.items()]
    return f"SELECT {', '.join(calls)}"


_ON, _OFF = "'on'", "'off'"
_ALONE: Final = {"max_parallel_workers_per_gather": "'0'", "jit": _OFF}
_BY_INDEX: Final = {
    **_ALONE,
    # Or it might sort half of the table to read the other half.
    "enable_seqscan": _OFF,
    "enable_incremental_sort": _OFF,
    "enable_indexscan": _ON,
    "enable_indexonlyscan": _ON,
    "enable_bitmapscan": _OFF,
    "enable_sort": _OFF,
}

_ROOM_TO_SORT: Final = (
    f"pg_catalog.pg_size_bytes(pg_catalog.current_setting('temp_file_limit')) NOT BETWEEN 0 AND {LEAST_TEMP_FILES - 1}"
)
_AHEAD: Final = "pg_catalog.current_setting('effective_io_concurrency')::int4"
_OR_BITMAP: Final = {
    **_BY_INDEX,
    "enable_bitmapscan": _ON,
    "enable_sort": f"CASE WHEN {_ROOM_TO_SORT} THEN {_ON} ELSE {_OFF} END",
    "work_mem": f"'{SORT_MEMORY}'",
    # The defaults. Many a server is told that its pages cost the same in any order, and then all plans do.
    "seq_page_cost": "'1'",
    "random_page_cost": "{page_cost}",
    # It is 0, and must be, on a system that cannot read ahead.
    "effective_io_concurrency": f"CASE {_AHEAD} WHEN 0 THEN '0' ELSE greatest({_AHEAD}, {READ_AHEAD})::text END",
}

IN_ONE_PROCESS: Final = _set(**_ALONE)
"""For a transaction that reads ranges in any order: several readers share the work already."""

EACH_BY_INDEX: Final = _set(
    **_ALONE, enable_seqscan=_OFF, enable_hashjoin=_OFF, enable_mergejoin=_OFF, enable_partition_pruning=_ON
)
"""For a transaction that looks up rows by their keys in a partitioned table. The planner expects each key to be looked
for in all partitions, though it is in one, and would rather read all of them.
"""

INDEX_PLANS_ONLY: Final = _set(**_BY_INDEX)
"""For a transaction that looks at keys in their order."""

_PAGE_COST: Final = "'4'"

BITMAPS_ONLY: Final = _set(
    **{**_OR_BITMAP, "random_page_cost": _PAGE_COST, "enable_indexscan": _OFF, "enable_indexonlyscan": _OFF}
)
"""For a transaction that counts rows where `better_by_bitmap` says so."""

_NO_INDEX_ALONE: Final = _set(**{**_OR_BITMAP, "enable_indexonlyscan": _OFF})

_IN_KEY_ORDER: Final = _set(
    **{**_OR_BITMAP, "enable_sort": f"CASE WHEN {_ROOM_TO_SORT} AND {{served}} THEN {_ON} ELSE {_OFF} END"}
)


def past_no_default(table: KeyedTable) -> sql.Composed:
    """For a transaction that asks for ranges of a partitioned table's keys.

    The server wrongly prunes the default partition of a table that is partitioned by ranges of several columns, where
    the ends of a range are equal in the first of these columns and differ in the next (found with 15.18 and 18.6, for
    bounds such as `FROM (1, MINVALUE) TO (1, MAXVALUE)`): its rows are missing then. So there nothing is pruned.
    """
    return sql.SQL(
        f"{with_partitions('pg_catalog.to_regclass({name})')} "
        "SELECT pg_catalog.set_config('enable_partition_pruning', 'off', true) "
        "FROM partitions JOIN pg_catalog.pg_partitioned_table ON partrelid = relid "
        "WHERE partstrat = 'r' AND partnatts > 1::int2 AND partdefid <> 0::oid LIMIT 1"
    ).format(name=sql.Literal(table.name.quoted()))


def no_index_alone(table: KeyedTable) -> sql.Composed:
    """For a transaction that looks at keys in their order where `better_by_bitmap` says so."""
    return sql.SQL(_NO_INDEX_ALONE).format(page_cost=_page_cost(table))


def in_key_order(table: KeyedTable) -> sql.Composed:
    """For a transaction that reads rows in the order of their keys: by the keys' index, or by a bitmap and a sort.

    The planner decides, by how close the order of the rows is to that of the keys (`correlation` in `pg_stats`).
    """
    return sql.SQL(_IN_KEY_ORDER).format(page_cost=_page_cost(table), served=_served_by_no_other_index(table))


def better_by_bitmap(table: KeyedTable) -> sql.Composed:
    """A query for whether only bitmaps count rows fast: the rows do not lie in the order of their keys, and many are on
    pages that may hold rows which not everybody sees.

    The index alone tells how many rows there are while the table's pages are marked as seen by all. A row on a page
    that was written since the last VACUUM has to be looked at: where rows lie in another order than their keys, each on
    a page of its own. The planner does not know which pages were written since, so the server's statistics decide.
    """
    return sql.SQL(
        "SELECT {served} AND coalesce({scattered}, false) AND EXISTS (SELECT FROM pg_catalog.pg_class AS c "
        "JOIN pg_catalog.pg_stat_all_tables AS t ON t.relid = pg_catalog.to_regclass({name})::oid "
        "WHERE c.oid = pg_catalog.to_regclass({name})::oid "
        "AND c.relpages - c.relallvisible + CASE "
        # Both count the pages that all see; changes are counted from each of them on.
        "WHEN greatest(t.last_vacuum, t.last_autovacuum) > greatest(t.last_analyze, t.last_autoanalyze) "
        "THEN t.n_dead_tup + t.n_ins_since_vacuum ELSE t.n_mod_since_analyze END > c.relpages / {looked_at})"
    ).format(
        served=_served_by_no_other_index(table),
        scattered=_of_orders(table, "pg_catalog.bool_or(scattered AND (place = 1 OR alike))"),
        name=sql.Literal(table.name.quoted()),
        looked_at=sql.Literal(PAGES_LOOKED_AT),
    )


def _page_cost(table: KeyedTable) -> sql.Composable:
    """The setting `random_page_cost`: with several columns in the key, it makes up for the correlation of the first one
    where that of another column says more about how the rows lie.

    With several columns the planner takes three quarters of the first one's correlation, and takes an index scan to
    cost less by the square of that.
    """
    if table.partitioned or len(table.key) == 1:
        return sql.SQL(_PAGE_COST)
    hidden = (
        "4::float8 / (1::float8 - pg_catalog.power("
        "0.75::float8 * pg_catalog.max(correlation) FILTER (WHERE place = 1), 2::float8))"
    )
    return sql.SQL("coalesce({}::text, {})").format(
        _of_orders(table, f"CASE WHEN pg_catalog.bool_or(scattered AND alike) THEN {hidden} END"), sql.SQL(_PAGE_COST)
    )


def _of_orders(table: KeyedTable, answer: LiteralString) -> sql.Composed:
    """An aggregate over the key's columns. Each has its `place`; its `correlation`, without sign; whether the rows are
    `scattered` by it; and, except the first, whether rows that are `alike` in the columns before it may fill many
    pages.

    Rows in the order of their keys have a correlation of 1 only by the first column. By a later one it is the chance
    that two rows are alike in all columns before: 0.1 where each of 10 tenants has its rows in order. How many rows
    have the same values in several columns is not known; at most as many as in any one of them.
    """
    return sql.SQL(f"(SELECT {answer} FROM {_ORDERS} AS orders)").format(
        scattered=sql.Literal(SCATTERED),
        seen=sql.Literal(ORDER_SEEN),
        pages=sql.Literal(PAGES_ALIKE),
        names=sql.Literal(table.key_names),
        name=sql.Literal(table.name.quoted()),
        schema=sql.Literal(table.name.schema),
        own=sql.Literal(table.name.name),
    )


def _served_by_no_other_index(table: KeyedTable) -> sql.Composable:
    """The condition that a bitmap of a range can be made of nothing but an index that begins with the whole key.

    The planner prefers an index of the first column alone, because it is smaller, and then looks at all rows of a
    tenant to read some of them. It also prefers a BRIN or GIN index that has a column of the key at any place, and then
    looks at all rows of the table. Partitions have indexes of their own, which are not looked at here.
    """
    if table.partitioned and len(table.key) > 1:
        return sql.SQL("false")
    return sql.SQL(
        "(SELECT pg_catalog.bool_and(CASE WHEN m.amname IN ('btree', 'hash') THEN i.indkey[0] <> k.numbers[1] "
        # Columns that an index only INCLUDEs lead nowhere in it.
        "OR i.indnkeyatts > {last} AND (i.indkey::int2[])[0:{last}] OPERATOR(pg_catalog.=) k.numbers "
        "ELSE NOT i.indkey::int2[] OPERATOR(pg_catalog.&&) k.numbers END) "
        "FROM pg_catalog.pg_index AS i JOIN pg_catalog.pg_class AS x ON x.oid = i.indexrelid "
        "JOIN pg_catalog.pg_am AS m ON m.oid = x.relam, "
        "(SELECT pg_catalog.array_agg(a.attnum ORDER BY n.place) AS numbers "
        "FROM pg_catalog.unnest({names}::text[]) WITH ORDINALITY AS n(name, place) "
        "JOIN pg_catalog.pg_attribute AS a ON a.attrelid = pg_catalog.to_regclass({name})::oid AND a.attname = n.name"
        ") AS k WHERE i.indrelid = pg_catalog.to_regclass({name})::oid)"
    ).format(
        last=sql.Literal(len(table.key) - 1),
        names=sql.Literal(table.key_names),
        name=sql.Literal(table.name.quoted()),
    )
