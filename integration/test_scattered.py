"""Rows that lie in the table in another order than that of their keys, as with random uuids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random

import pytest
from psycopg import sql

from backfill.adapters import open_upstream
from backfill.options import parse
from backfill.plan import Measure
from backfill.upstream.postgres import PostgresUpstream
from backfill.upstream.postgres.snapshot.counting import RANGES_AT_ONCE
from backfill.upstream.postgres.snapshot.plans import better_by_bitmap, in_key_order, no_index_alone
from backfill.upstream.postgres.snapshot.reader import PostgresSnapshotReader
from backfill.vnode import WHOLE_TABLE, KeyRange, ranges_between
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.waiting import eventually

ROWS = 40_000
"""They fill about 560 pages."""

SCATTERED = f"INSERT INTO t SELECT md5(i::text)::uuid, repeat('v', 80) FROM generate_series(1, {ROWS}) i"
IN_ORDER = f"{SCATTERED} ORDER BY 1"


@contextmanager
def opened(database: Database, **options: str) -> Iterator[PostgresUpstream]:
    upstream = open_upstream(parse({**database.options, "dbtable": "t", **options}))
    assert isinstance(upstream, PostgresUpstream)
    try:
        yield upstream
    finally:
        upstream.close()


def insert(database: Database, statement: str) -> None:
    """Runs the statement; returns when its rows are counted. A session may report them to the server's statistics only
    when it ends: after the VACUUM that comes next, they would be taken for writes since then.
    """
    with database.connect(autocommit=True) as session:
        session.execute(statement.encode())
        pid = session.info.backend_pid
    eventually(lambda: not database.execute("SELECT pid FROM pg_stat_activity WHERE pid = %s", [pid]))


@pytest.fixture
def filled(database: Database) -> Database:
    database.execute("CREATE TABLE t (id uuid PRIMARY KEY, v text) WITH (autovacuum_enabled = off)")
    insert(database, SCATTERED)
    database.execute("VACUUM ANALYZE t")
    return database


def plan_of(database: Database, upstream: PostgresUpstream, item: KeyRange, settings: Sequence[str] = ()) -> str:
    """The plan by which a reader reads this range in key order."""
    reader = upstream.reader()
    assert isinstance(reader, PostgresSnapshotReader)
    with database.connect() as connection, connection.transaction():
        for setting in settings:
            connection.execute(setting.encode())
        connection.execute(in_key_order(upstream._table.keyed))
        return str(connection.execute(sql.SQL("EXPLAIN {}").format(reader._in_order(item))).fetchall())


MIDDLE = "80000000-0000-0000-0000-000000000000"
HALF = KeyRange(None, (MIDDLE,))


def test_they_are_read_page_by_page_and_sorted(filled: Database) -> None:
    with opened(filled) as upstream:
        plan = plan_of(filled, upstream, HALF, ["SET random_page_cost = 1.1"])
    assert "Sort" in plan
    assert "Bitmap Heap Scan" in plan


def test_rows_in_the_order_of_their_keys_are_read_by_the_index(database: Database) -> None:
    database.execute("CREATE TABLE t (id uuid PRIMARY KEY, v text)")
    database.execute(IN_ORDER)
    database.execute("VACUUM ANALYZE t")
    with opened(database) as upstream:
        plan = plan_of(database, upstream, HALF)
    assert "Index Scan using t_pkey" in plan
    assert "Sort" not in plan


TENANTS = (
    "CREATE TABLE t (tenant int, id uuid, v text, PRIMARY KEY (tenant, id)) WITH (autovacuum_enabled = off);"
    f"INSERT INTO t SELECT i % 20, md5(i::text)::uuid, repeat('v', 80) FROM generate_series(1, {ROWS}) i"
)


@pytest.mark.parametrize(
    ("also", "sorted_too"),
    [
        ("SELECT", True),
        ("CREATE INDEX ON t (id); CREATE INDEX ON t (tenant, id, md5(v))", True),
        ("CREATE INDEX other ON t (tenant)", False),
        ("CREATE INDEX other ON t (tenant, v)", False),
        ("CREATE INDEX other ON t (tenant) INCLUDE (id)", False),
        ("CREATE INDEX other ON t USING brin (tenant, id)", False),
        ("CREATE INDEX other ON t USING brin (v, id)", False),
        ("CREATE INDEX ON t USING brin (v)", True),
    ],
    ids=[
        "no other",
        "one that begins otherwise",
        "one that begins alike",
        "one that only begins alike",
        "one that includes the rest",
        "BRIN of the key",
        "BRIN with the key's second column behind another",
        "BRIN of another column",
    ],
)
def test_of_a_key_of_two_columns_no_other_index_is_used(database: Database, also: str, sorted_too: bool) -> None:
    """An index of the first column alone would lead to all rows of a tenant, for each chunk of them."""
    database.execute(TENANTS)
    database.execute(also)
    database.execute("VACUUM ANALYZE t")
    with opened(database) as upstream:
        plan = plan_of(database, upstream, KeyRange(("5", MIDDLE), ("9", MIDDLE)))
    assert ("Bitmap" in plan) == ("Sort" in plan) == sorted_too
    assert "other" not in plan


IN_TENANTS = (
    "CREATE TABLE t (tenant int, id uuid, v text, PRIMARY KEY (tenant, id)) WITH (autovacuum_enabled = off);"
    "INSERT INTO t SELECT {tenant}, md5(i::text)::uuid, repeat('v', 240) "
    f"FROM generate_series(1, {ROWS}) i ORDER BY {{order}}"
)
"""The rows fill about 1400 pages."""


@pytest.mark.parametrize(
    ("tenant", "order", "scattered"),
    [
        ("1", "i", True),
        ("CASE WHEN i % 20 = 0 THEN i ELSE 1 END", "1, i", True),
        ("1", "md5(i::text)", False),
        ("CASE WHEN i % 4 = 0 THEN 2 ELSE 1 END", "1, i", True),
        ("CASE WHEN i % 4 = 0 THEN 2 ELSE 1 END", "1, md5(i::text)", False),
        ("i / 1000", "i", False),
    ],
    ids=["one", "one that has nearly all", "one in order", "one of two", "one of two in order", "small ones"],
)
def test_rows_of_a_large_tenant_may_lie_in_another_order_than_their_keys(
    tenant: str, order: str, scattered: bool, database: Database
) -> None:
    """The key's first column does not show it, and that is all the planner goes by."""
    insert(database, IN_TENANTS.format(tenant=tenant, order=order))
    database.execute("VACUUM ANALYZE t")
    first = "SELECT correlation > 0.8 FROM pg_stats WHERE tablename = 't' AND attname = 'tenant'"
    assert database.execute(first) == [(True,)]
    ((begin,), (end,)) = database.execute(
        f"SELECT ARRAY[tenant::text, id::text] FROM t ORDER BY tenant, id OFFSET {ROWS // 4} LIMIT {ROWS // 4 + 1}"
    )[:: ROWS // 4]
    with opened(database) as upstream, database.connect() as connection, connection.transaction():
        plan = plan_of(database, upstream, KeyRange(tuple(begin), tuple(end)))
        connection.execute(in_key_order(upstream._table.keyed))
        ((page_cost,),) = connection.execute("SELECT current_setting('random_page_cost')").fetchall()
    assert "Bitmap" in plan or not scattered
    assert (float(page_cost) > 4) == scattered
    eventually(lambda: not by_bitmap(database))
    database.execute("UPDATE t SET v = 'w' WHERE id IN (SELECT id FROM t TABLESAMPLE BERNOULLI (5))")
    modified = f"SELECT n_mod_since_analyze > {ROWS // 30} FROM pg_stat_all_tables WHERE relid = 't'::regclass"
    eventually(lambda: database.execute(modified) == [(True,)])
    assert by_bitmap(database) == scattered


@pytest.mark.parametrize(
    ("also", "sorted_too"),
    [
        ("CREATE INDEX ON t (v); CREATE INDEX ON t USING brin (v)", True),
        ("CREATE INDEX ON t USING hash (id)", True),
        ("CREATE INDEX other ON t USING brin (id)", False),
        ("CREATE INDEX other ON t USING brin (v, id)", False),
    ],
    ids=["of another column", "hash", "BRIN", "BRIN behind another column"],
)
def test_an_index_that_leads_to_no_single_rows_is_not_used(filled: Database, also: str, sorted_too: bool) -> None:
    """The planner takes BRIN of scattered values for cheap, and then looks at the whole table for each chunk of it."""
    filled.execute(also)
    filled.execute("VACUUM ANALYZE t")
    with opened(filled) as upstream:
        ((middle,), (end,)) = filled.execute(
            f"SELECT id::text FROM t ORDER BY id OFFSET {ROWS // 2} LIMIT {ROWS // 20 + 1}"
        )[:: ROWS // 20]
        plan = plan_of(filled, upstream, KeyRange((middle,), (end,)))
    assert ("Bitmap" in plan) == ("Sort" in plan) == sorted_too
    assert "other" not in plan


def test_nothing_is_sorted_where_the_server_allows_few_temporary_files(filled: Database) -> None:
    with opened(filled) as upstream:
        limited = plan_of(filled, upstream, HALF, ["SET temp_file_limit = '1GB'"])
        unlimited = plan_of(filled, upstream, HALF, ["SET temp_file_limit = '4GB'"])
    assert "Sort" not in limited
    assert "Sort" in unlimited


@pytest.mark.parametrize(("limit", "sorts"), [("1GB", False), ("4GB", True)])
def test_the_last_key_of_a_count_is_sorted_for_only_where_rows_are(filled: Database, limit: str, sorts: bool) -> None:
    with opened(filled) as upstream, filled.connect() as connection, connection.transaction():
        table = upstream._table.keyed
        connection.execute(f"SET temp_file_limit = '{limit}'".encode())
        connection.execute("SET effective_cache_size = '1MB'")
        connection.execute(no_index_alone(table))
        keys = table.select(table.key_columns, HALF, "")
        last = sql.SQL("EXPLAIN {} ORDER BY {} LIMIT 1 OFFSET 15000").format(keys, table.order)
        plan = str(connection.execute(last).fetchall())
    assert ("Sort" in plan) == sorts


@pytest.mark.parametrize("readahead", [0, 1, 300])
def test_a_server_that_reads_ahead_goes_on_to(filled: Database, readahead: int) -> None:
    with opened(filled) as upstream, filled.connect() as connection, connection.transaction():
        connection.execute(f"SET effective_io_concurrency = {readahead}".encode())
        connection.execute(in_key_order(upstream._table.keyed))
        ((found,),) = connection.execute("SELECT current_setting('effective_io_concurrency')").fetchall()
    assert int(found) == (0 if readahead == 0 else max(readahead, 16))


def by_bitmap(database: Database) -> bool:
    """Whether a stream would count the table's rows by a bitmap now."""
    with opened(database) as upstream, database.connect() as connection:
        ((found,),) = connection.execute(better_by_bitmap(upstream._table.keyed)).fetchall()
    return bool(found)


def test_pages_written_since_the_last_vacuum_decide_how_rows_are_counted(filled: Database) -> None:
    # The server's statistics follow after a moment.
    eventually(lambda: not by_bitmap(filled))
    # One row of each page or so.
    filled.execute("UPDATE t SET v = 'w' WHERE id IN (SELECT id FROM t TABLESAMPLE BERNOULLI (3))")
    eventually(lambda: by_bitmap(filled))
    filled.execute("VACUUM t")
    eventually(lambda: not by_bitmap(filled))
    # VACUUM has left free space in pages all over the table.
    filled.execute("INSERT INTO t SELECT gen_random_uuid(), 'new' FROM generate_series(1, 2000) i")
    eventually(lambda: by_bitmap(filled))
    filled.execute("VACUUM ANALYZE t")
    eventually(lambda: not by_bitmap(filled))


@pytest.mark.parametrize(
    ("key", "rows"),
    [("id", IN_ORDER), ("id, n", SCATTERED)],
    ids=["rows in the order of their keys", "a key that another index begins like"],
)
def test_others_are_counted_by_the_index(database: Database, key: str, rows: str) -> None:
    database.execute(f"CREATE TABLE t (id uuid, v text, n int DEFAULT 0, PRIMARY KEY ({key}))")
    database.execute("CREATE INDEX ON t (id); ALTER TABLE t SET (autovacuum_enabled = off)")
    insert(database, rows.replace("INTO t", "INTO t (id, v)"))
    database.execute("VACUUM ANALYZE t")
    database.execute("UPDATE t SET v = 'w'")
    modified = "SELECT n_mod_since_analyze FROM pg_stat_all_tables WHERE relid = 't'::regclass"
    eventually(lambda: database.execute(modified) == [(ROWS,)])
    assert not by_bitmap(database)


@pytest.mark.parametrize("limit", [1, 600, 1 << 62])
def test_ranges_are_counted_by_bitmaps_as_by_the_index(
    filled: Database, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even ranges without rows or with far more than the limit, and more ranges than are counted at once."""
    rng = Random(limit)
    with opened(filled) as upstream:
        near = [(f"{rng.getrandbits(32):08x}-0000-0000-0000-000000000000",) for _ in range(9)]
        bounds = sorted([*upstream.bounds(2 * RANGES_AT_ONCE), *near])
        asked = [Measure(item, limit) for item in (*ranges_between(bounds), WHOLE_TABLE)]
        rng.shuffle(asked)
        counted = {}
        for chosen in (False, True):
            monkeypatch.setattr(
                "backfill.upstream.postgres.snapshot.pin.better_by_bitmap",
                lambda _, by_bitmap=chosen: f"SELECT {by_bitmap}",
            )
            pin = upstream.snapshot_epoch(None, max_changes=9).pin
            assert pin is not None
            counted[chosen] = upstream.measure(pin, asked)
    assert counted[True] == counted[False]
    assert sum(extent.last is not None for extent in counted[True]) > 9 or limit == 1 << 62


def test_a_stream_of_them_has_each_row_once_and_in_key_order(filled: Database, start_stream: StartStream) -> None:
    filled.execute("UPDATE t SET v = 'w' WHERE id IN (SELECT id FROM t TABLESAMPLE BERNOULLI (3))")
    eventually(lambda: by_bitmap(filled))
    run = start_stream(select="id::text AS id, v", numPartitions="2", vnodeCount="40")
    for _ in range(4):
        assert run.plan(9_000)
        held = run.upstream._epochs.exporter._held
        assert held is not None
        assert held.count_by_bitmap
        require = run.judge()
        parts = [run.read_part(part) for part in run.parts()]
        keys = [[row["id"] for row in part if row["_is_snapshot"]] for part in parts]
        assert sum(map(len, keys)) == 9_000
        assert all(part == sorted(set(part)) for part in keys)
        run.commit([row for part in parts for row in part])
        require()
    filled.execute("DELETE FROM t WHERE v = 'w'")
    run.finish()
