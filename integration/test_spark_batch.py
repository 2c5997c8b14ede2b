"""`spark.read`: the table as it is now."""

from __future__ import annotations

from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from pyspark.errors import AnalysisException, PythonException

from backfill.errors import ConnectionLostError, OptionsError, SchemaChangedError
from backfill.options import parse
from backfill.upstream.postgres import PostgresUpstream
from backfill.upstream.postgres.snapshot import reader
from backfill.vnode import WHOLE_TABLE, ranges_between
from integration.database import Database
from integration.spark_stream import SparkStream, make_table, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 60_000
"""Enough rows for three readers."""


@pytest.fixture
def table(database: Database) -> Database:
    make_table(database, ROWS)
    return database


def load(spark: SparkSession, database: Database, **options: str) -> DataFrame:
    return spark.read.format("backfill").options(**{**database.options, "dbtable": "t", **options}).load()


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return sorted(found, key=lambda row: row["id"])


def in_database(database: Database, condition: str = "true") -> list[dict[str, Any]]:
    with (
        database.connect(options="-c timezone=UTC") as connection,
        connection.cursor(row_factory=psycopg.rows.dict_row) as cursor,
    ):
        return cursor.execute(f"SELECT * FROM t WHERE {condition} ORDER BY id".encode()).fetchall()


def test_a_read_gives_the_table_in_parallel_and_again_as_it_is_later(spark: SparkSession, table: Database) -> None:
    frame = load(spark, table, numPartitions="3")
    assert frame.columns == ["id", "v", "n", "at"]
    assert frame.rdd.getNumPartitions() == 3
    assert rows_of(frame) == in_database(table)
    write(table, 10)
    table.execute("VACUUM t")
    assert rows_of(frame) == in_database(table)
    table.execute("TRUNCATE t")
    assert rows_of(frame) == []


def test_a_read_has_the_columns_asked_for_in_their_order_and_types(spark: SparkSession, table: Database) -> None:
    chosen = load(spark, table, columns="n, v", customSchema="n STRING", filter="id = 5")
    assert chosen.dtypes == [("n", "string"), ("v", "string")]
    assert chosen.collect() == [("1.67", "v5")]
    declared = spark.read.schema("v string, id long").format("backfill").options(**table.options)
    assert declared.options(dbtable="t", filter="id = 5").load().collect() == [("v5", 5)]
    other = spark.read.schema("id int").format("backfill").options(**table.options).option("dbtable", "t").load()
    with pytest.raises(AnalysisException, match="column id is bigint, and int is asked for"):
        other.collect()
    strict = spark.read.schema("n decimal(8,2) not null").format("backfill").options(**table.options)
    with pytest.raises(AnalysisException, match="column n may be null, expected not null"):
        strict.option("dbtable", "t").load().collect()
    more = spark.read.schema("id long, ad int").format("backfill").options(**table.options).option("dbtable", "t")
    with pytest.raises(
        AnalysisException, match=r"SchemaChangedError: \S+ has no column 'ad'; .* leave out schema\(…\)"
    ):
        more.load().collect()


def test_a_type_that_was_altered_since_the_read_was_planned_is_named(spark: SparkSession, database: Database) -> None:
    make_table(database, 3)
    frame = load(spark, database)
    assert frame.count() == 3
    database.execute("ALTER TABLE t ALTER id TYPE integer")
    with pytest.raises(
        PythonException, match="SchemaChangedError: column 'id' was bigint when the table was described"
    ):
        frame.collect()
    assert [row.id for row in load(spark, database).orderBy("id").collect()] == [1, 2, 3]


def test_an_amount_of_money_is_not_taken_for_the_number_that_the_column_was(
    spark: SparkSession, database: Database
) -> None:
    """The driver gives money as int64 too, in hundredths."""
    database.execute("CREATE TABLE t (id bigint PRIMARY KEY, n bigint); INSERT INTO t VALUES (1, 5)")
    frame = load(spark, database)
    assert [row.n for row in frame.collect()] == [5]
    database.execute("ALTER TABLE t ALTER n TYPE money")
    with pytest.raises(PythonException, match="SchemaChangedError: column 'n' was bigint when the table was described"):
        frame.select("n", "id").collect()
    assert [row.n for row in load(spark, database).collect()] == ["$5.00"]


@pytest.mark.parametrize(
    "condition", ["id % 7 = 3 OR v = 'v9' -- with a comment", "n > 19990 AND id IN (SELECT max(id) - 1 FROM t)"]
)
def test_a_filter_is_evaluated_by_the_database(spark: SparkSession, table: Database, condition: str) -> None:
    expected = in_database(table, condition.partition("--")[0])
    assert expected
    assert rows_of(load(spark, table, filter=condition)) == expected


@pytest.mark.parametrize(
    ("condition", "problem"),
    [
        ("nope = 1", 'column "nope" does not exist'),
        ("id", "must be type boolean, not type bigint"),
        ("id = 'five'", "invalid input syntax for type bigint"),
        ("id = 1) OR (id > 1", 'syntax error at or near ")"'),
        ("id = 1 ORDER BY id", "syntax error"),
        ("true; DELETE FROM t", "cannot insert multiple commands"),
        ("v = 'open", "unterminated quoted string"),
        ("true /* open", "unterminated /* comment"),
    ],
)
def test_what_is_no_condition_is_refused_when_the_source_is_loaded(
    database: Database, condition: str, problem: str
) -> None:
    """This goes without Spark, whose `load()` asks for the schema."""
    make_table(database, 3)
    upstream = PostgresUpstream(parse({**database.options, "dbtable": "t", "filter": condition}))
    try:
        with pytest.raises(
            OptionsError, match=r"filter is .*, which is not a condition on a row of \"public\".\"t\""
        ) as caught:
            upstream.schema()
    finally:
        upstream.close()
    assert problem in str(caught.value)
    assert len(in_database(database)) == 3


def test_a_wrong_filter_is_named_at_load(spark: SparkSession, database: Database) -> None:
    make_table(database, 3)
    with pytest.raises(AnalysisException, match="OptionsError: filter is 'nope = 1', which is not a condition"):
        load(spark, database, filter="nope = 1")


def test_with_a_state_directory_a_read_has_the_columns_of_the_stream(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    make_table(database, 3)
    stream = SparkStream(spark, database, tmp_path)
    frame = load(spark, database, stateDir=str(stream.state))
    assert frame.schema == stream.load().schema
    first = rows_of(frame)[0]
    assert first.pop("_commit_timestamp") > first["at"]
    assert {name: value for name, value in first.items() if name.startswith("_")} == {
        "_change_type": "insert",
        "_is_snapshot": True,
        "_commit_version": 0,
        "_sequence": 0,
    }
    assert not stream.state.exists()


def test_each_part_is_of_one_state_while_somebody_writes(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written after the first rows have come is in none of the later rows of the same part."""
    make_table(database, 50_000)
    monkeypatch.setattr(reader, "BATCH_BYTES", 1 << 16)
    before = in_database(database)
    upstream = PostgresUpstream(parse({**database.options, "dbtable": "t"}))
    reading = upstream.reader().scan(ranges_between(upstream.bounds(3)))
    upstream.close()
    found = next(reading).to_pylist()
    write(database, 10)
    for batch in reading:
        found += batch.to_pylist()
    assert sorted(found, key=itemgetter("id")) == before


def test_rows_of_no_pinned_state_come_as_they_lie_in_the_table(database: Database) -> None:
    """Reading them in key order would lead all over the table where rows lie in another order."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("INSERT INTO t SELECT 1000 - i FROM generate_series(1, 1000) AS i")
    upstream = PostgresUpstream(parse({**database.options, "dbtable": "t"}))
    reading = upstream.reader().scan([WHOLE_TABLE])
    upstream.close()
    assert [row["id"] for batch in reading for row in batch.to_pylist()] == list(range(999, -1, -1))


MOVED = {
    "is partitioned now": """
        DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
        CREATE TABLE part PARTITION OF t FOR VALUES FROM (0) TO (100000); INSERT INTO t VALUES (1, 'v')
    """,
    "has inheritance children now": """
        ALTER TABLE t RENAME TO before; CREATE TABLE t (LIKE before INCLUDING ALL);
        ALTER TABLE before INHERIT t
    """,
    "column id of the table .* may be null now": """
        ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t ALTER id DROP NOT NULL; INSERT INTO t VALUES (NULL)
    """,
    "column id of .* to the key when": """
        DROP TABLE t; CREATE TABLE t (id int, v text PRIMARY KEY); INSERT INTO t VALUES (NULL, 'v')
    """,
}
"""Ways for rows to get where a read that was planned before does not look, by what the error says."""


@pytest.mark.parametrize("message", MOVED)
def test_rows_are_not_passed_over_that_are_no_longer_where_they_were_when_the_read_was_planned(
    database: Database, message: str
) -> None:
    """Spark keeps a plan as long as its DataFrame, and whoever moves the table knows nothing of that."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    database.execute("INSERT INTO t SELECT i, 'v' FROM generate_series(1, 100) i")
    upstream = PostgresUpstream(parse({**database.options, "dbtable": "t"}))
    reading = upstream.reader().scan(ranges_between(upstream.bounds(3)))
    upstream.close()
    database.execute(MOVED[message])
    with pytest.raises(SchemaChangedError, match=message):
        list(reading)


REORDERED = (
    """
        ALTER TYPE e RENAME TO before; CREATE TYPE e AS ENUM ('d', 'c', 'b', 'a');
        ALTER TABLE t ALTER id TYPE e USING id::text::e
    """,
    """
        ALTER TYPE e RENAME VALUE 'a' TO 'z'; ALTER TYPE e RENAME VALUE 'd' TO 'a';
        ALTER TYPE e RENAME VALUE 'z' TO 'd'
    """,
)


@pytest.mark.parametrize("reorder", REORDERED)
def test_rows_do_not_come_twice_where_the_labels_of_the_key_have_another_order_than_when_the_read_was_planned(
    database: Database, reorder: str
) -> None:
    database.execute("CREATE TYPE e AS ENUM ('a', 'b', 'c', 'd'); CREATE TABLE t (id e, n int, PRIMARY KEY (id, n))")
    database.execute("INSERT INTO t SELECT (enum_range(NULL::e))[1 + i % 4], i FROM generate_series(1, 100) i")
    upstream = PostgresUpstream(parse({**database.options, "dbtable": "t"}))
    planned, ranges = upstream.reader(), ranges_between(upstream.bounds(4))
    upstream.close()
    assert sum(batch.num_rows for batch in planned.scan(ranges)) == 100
    database.execute(reorder)
    with pytest.raises(SchemaChangedError, match="has another order now"):
        list(planned.scan(ranges))


def test_a_table_that_is_read_in_one_part_may_lose_its_key_meanwhile(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    upstream = PostgresUpstream(parse({**database.options, "dbtable": "t"}))
    reading = upstream.reader().scan([WHOLE_TABLE])
    upstream.close()
    database.execute(
        "ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t ALTER id DROP NOT NULL; INSERT INTO t VALUES (NULL)"
    )
    assert [row["id"] for batch in reading for row in batch.to_pylist()] == [None]


def test_a_state_that_is_lost_with_its_session_is_not_mixed_with_a_later_one(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_table(database, 400_000)
    monkeypatch.setattr(reader, "BATCH_BYTES", 1 << 16)
    upstream = PostgresUpstream(parse({**database.options, "dbtable": "t"}))
    reading = upstream.reader().scan([WHOLE_TABLE])
    upstream.close()
    next(reading)
    database.execute(
        "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    with pytest.raises(ConnectionLostError, match="the rows have to be read again"):
        list(reading)
