"""Partitioned tables, tables with children, and names of all kinds."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from backfill.errors import TableError, ValueOutOfRangeError
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.stream_harness import table_of

PARTITIONED = """
    CREATE TABLE t (region text, id int, v text, PRIMARY KEY (region, id)) PARTITION BY LIST (region);
    CREATE TABLE t_north PARTITION OF t FOR VALUES IN ('north');
    CREATE TABLE t_south PARTITION OF t FOR VALUES IN ('south') PARTITION BY RANGE (id);
    CREATE TABLE t_south_1 PARTITION OF t_south FOR VALUES FROM (0) TO (50);
    CREATE TABLE t_south_2 PARTITION OF t_south FOR VALUES FROM (50) TO (1000);
    CREATE TABLE t_rest PARTITION OF t DEFAULT;
    INSERT INTO t SELECT (ARRAY['north', 'south', 'east'])[i % 3 + 1], i, 'v' FROM generate_series(1, 200) i;
    ANALYZE t
"""


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_a_partitioned_table_is_one_table(database: Database, start_stream: StartStream, identity: str) -> None:
    database.execute(PARTITIONED)
    for leaf in ("t_north", "t_south_1", "t_south_2", "t_rest"):
        database.execute(f"ALTER TABLE {leaf} REPLICA IDENTITY {identity}")
    run = start_stream(key=("region", "id"), vnodeCount="5", numPartitions="2")
    number = 0
    while not number or not run.backfilled:
        number += 1
        run.judged_batch(30)
        database.execute(
            f"UPDATE t SET v = 'round {number}' WHERE id % 5 = {number % 5};"
            f"UPDATE t SET region = 'south' WHERE region = 'north' AND id % 7 = {number % 7};"
            f"UPDATE t SET id = id + 300 WHERE region = 'south' AND id BETWEEN {10 * number} AND {10 * number + 3};"
            f"DELETE FROM t WHERE id = {number}; INSERT INTO t_north VALUES ('north', {700 + number}, 'new')"
        )
    database.execute("CREATE TABLE t_west PARTITION OF t FOR VALUES IN ('west')")
    database.execute(f"ALTER TABLE t_west REPLICA IDENTITY {identity}")
    run.restart()
    database.execute("INSERT INTO t VALUES ('west', 1, 'v'), ('west', 2, 'v'); UPDATE t SET v = 'w' WHERE id = 1")
    run.finish()


def test_one_partition_may_be_streamed_by_itself(database: Database, start_stream: StartStream) -> None:
    database.execute(PARTITIONED)
    run = start_stream("t_south_1", key=("region", "id"))
    run.judged_batch(5)
    database.execute("UPDATE t SET v = 'new'; UPDATE t SET region = 'north' WHERE id = 4; DELETE FROM t WHERE id = 7")
    run.backfill(5)
    run.finish()


def test_the_parent_of_other_tables_is_refused_and_its_children_are_not(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 50)
    database.execute("CREATE TABLE child (PRIMARY KEY (id)) INHERITS (t)")
    database.execute("INSERT INTO child SELECT i, 'child' FROM generate_series(1, 20) i")
    with pytest.raises(TableError, match="inheritance children"):
        start_stream().batch()
    run = start_stream("child", stateDir=f"{start_stream().options['stateDir']}-child")
    run.judged_batch(5)
    database.execute("UPDATE t SET v = 'both'; DELETE FROM t WHERE id < 3")
    run.finish()


def test_a_table_that_gets_a_child_keeps_its_own_rows_only(database: Database, start_stream: StartStream) -> None:
    table_of(database, 50)
    run = start_stream()
    run.judged_batch(20)
    database.execute("CREATE TABLE child (PRIMARY KEY (id)) INHERITS (t); INSERT INTO child VALUES (1, 'child')")
    database.execute("UPDATE t SET v = 'both' WHERE id = 1; INSERT INTO child VALUES (1000, 'child')")
    run.catch_up(20)
    assert sorted(run.fold.rows) == [(n,) for n in range(1, 51)]
    assert run.fold.rows[(1,)]["v"] == "both"


ODD = ['"Select"', '"a b"', '"ü"', '"it\'s"', '"say ""hi"""', '"100%"', '"%s"', '"{}"', '"a,b"', '"user"', '"x;y"']


def test_names_may_be_anything_that_can_be_quoted(database: Database, start_stream: StartStream) -> None:
    database.execute('CREATE SCHEMA "My Schema"')
    columns = ", ".join(f"{name} text" for name in ODD[2:])
    table = '"My Schema"."Ta""ble %"'
    database.execute(f"CREATE TABLE {table} ({ODD[0]} int, {columns}, {ODD[1]} int, PRIMARY KEY ({ODD[1]}, {ODD[0]}))")
    database.execute(
        f"INSERT INTO {table} ({ODD[0]}, {ODD[1]}, {ODD[2]}) SELECT i, i % 3, 'v' FROM generate_series(1, 60) i"
    )
    run = start_stream(table, key=("a b", "Select"), vnodeCount="4", numPartitions="2")
    run.judged_batch(20)
    for name in ODD[2:]:
        database.execute(f"UPDATE {table} SET {name} = 'new' WHERE {ODD[0]} % 2 = 0")
        run.judged_batch(10)
    database.execute(f"UPDATE {table} SET {ODD[0]} = {ODD[0]} + 100 WHERE {ODD[1]} = 1")
    run.finish()


def test_the_names_of_a_keys_type_may_be_anything_too(database: Database, start_stream: StartStream) -> None:
    """Also where the database compares keys that come as text: there the statement has these names in it."""
    database.execute("CREATE SCHEMA \"100%\"; CREATE TYPE \"100%\".\"%s\" AS ENUM ('a', '%s', 'z')")
    database.execute('CREATE TABLE t (id "100%"."%s", n int, v text, PRIMARY KEY (id, n))')
    database.execute(
        'INSERT INTO t SELECT k, n, \'v\' FROM unnest(enum_range(NULL::"100%"."%s")) k, generate_series(1, 9) n'
    )
    run = start_stream(key=("id", "n"), vnodeCount="2", numPartitions="1")
    for number in (1, 2, 3):
        run.judged_batch(7)
        database.execute(f"UPDATE t SET v = 'round {number}' WHERE n % 2 = 0")
    run.finish()


@pytest.mark.parametrize("name", ["textin", "k0", "place", "total", "asked", "vnode", "row_count", "key"])
def test_a_key_may_be_called_like_anything_in_our_statements(
    database: Database, start_stream: StartStream, name: str
) -> None:
    """An ORDER BY takes a bare name for an output column's first, and a subselect for that of its own column."""
    database.execute(f"CREATE TABLE t ({name} int, v text, PRIMARY KEY ({name}))")
    database.execute("INSERT INTO t SELECT i, 'v' FROM generate_series(1, 60) i; ANALYZE t")
    run = start_stream(key=(name,), vnodeCount="2", numPartitions="1", changelog="full")
    run.judged_batch(7)
    for number in (1, 2, 3):
        database.execute(f"UPDATE t SET v = 'round {number}' WHERE {name} % 3 = 0")
        database.execute(f"UPDATE t SET {name} = {name} - 100 WHERE {name} = {60 - number}")
        run.judged_batch(7)
    run.finish()


@pytest.mark.parametrize("changelog", ["logged", "full"])
def test_names_may_begin_with_a_dot(database: Database, start_stream: StartStream, changelog: str) -> None:
    """Arrow's functions take a text that begins with a dot for a path: .v would be the v of a struct."""
    database.execute('CREATE TABLE t (id int, ".id" int, v text, ".v" text, PRIMARY KEY (".id"))')
    database.execute("INSERT INTO t SELECT i, -i, 'v', 'dot' FROM generate_series(1, 60) i; ANALYZE t")
    run = start_stream(key=(".id",), vnodeCount="2", changelog=changelog)
    run.judged_batch(20)
    database.execute("UPDATE t SET v = 'new' WHERE id % 2 = 0; UPDATE t SET \".v\" = 'newer' WHERE id % 3 = 0")
    database.execute('UPDATE t SET ".id" = id WHERE id % 5 = 0; DELETE FROM t WHERE id = 7')
    run.backfill(20)
    run.finish()


@pytest.mark.parametrize("changelog", ["logged", "full"])
def test_a_time_may_be_the_key_of_a_stream_as_a_time(
    database: Database, start_stream: StartStream, changelog: str
) -> None:
    """The state store holds the time in nanoseconds, as Spark has it."""
    database.execute("CREATE TABLE t (id time PRIMARY KEY, v text)")
    database.execute("INSERT INTO t SELECT '00:00'::time + i * interval '1 min', 'v' FROM generate_series(0, 59) i")
    run = start_stream(customSchema="id TIME", vnodeCount="3", changelog=changelog)
    run.judged_batch(20)
    database.execute("UPDATE t SET v = 'new' WHERE id < '00:30'; DELETE FROM t WHERE id = '00:07'")
    database.execute("INSERT INTO t VALUES ('23:59:59.999999', 'last')")
    run.restart()
    run.backfill(20)
    run.finish()


@pytest.mark.parametrize("instead", [{"customSchema": "d STRING"}, {"columns": "id, v"}])
def test_a_change_that_does_not_fit_is_passed_without_its_column_or_with_it_as_text(
    database: Database, start_stream: StartStream, instead: dict[str, str]
) -> None:
    """The change stays in the log as it is, even where the row is mended."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text, d date)")
    database.execute("INSERT INTO t SELECT i, 'v', '2024-01-01' FROM generate_series(1, 40) i; ANALYZE t")
    run = start_stream(vnodeCount="2")
    run.judged_batch(10)
    database.execute("UPDATE t SET d = 'infinity' WHERE id = 1")
    database.execute("UPDATE t SET d = '2024-01-02' WHERE id = 1")
    with pytest.raises(
        ValueOutOfRangeError, match=r"also after the row is mended: start the query again with .*\"d STR"
    ):
        run.batch(10)
    before = run.options
    run.restart(**instead)
    run.catch_up(10)
    assert run.fold.rows[(1,)].get("d", "2024-01-02") == "2024-01-02"
    run.stop()
    run.options = before
    database.execute("UPDATE t SET v = 'new', d = d + 1")
    run.finish()


def test_what_a_subscription_applies_has_the_time_of_its_commit_on_the_server_it_comes_from(
    database: Database, start_stream: StartStream
) -> None:
    """Rows come in the order in which they were committed here, whatever time they were committed at there."""
    table_of(database, 3)
    run = start_stream()
    run.catch_up()
    database.execute("UPDATE t SET v = 'from here' WHERE id = 1")
    origin = f"'{database.name}'"
    database.execute(
        f"SELECT pg_replication_origin_create({origin}), pg_replication_origin_session_setup({origin});"
        "BEGIN; SELECT pg_replication_origin_xact_setup('0/1', '2020-02-01 12:00:00Z');"
        "UPDATE t SET v = 'from there' WHERE id = 2; COMMIT"
    )
    database.execute(f"SELECT pg_replication_origin_drop({origin})")
    run.plan()
    rows = sorted(run.read(), key=lambda row: row["_sequence"])
    run.commit(rows)
    assert [row["v"] for row in rows] == ["from here", "from there"]
    assert rows[0]["_commit_version"] < rows[1]["_commit_version"]
    assert rows[1]["_commit_timestamp"] == datetime(2020, 2, 1, 12, tzinfo=UTC) < rows[0]["_commit_timestamp"]
    run.finish()
