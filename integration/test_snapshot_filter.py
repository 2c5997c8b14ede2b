"""The option `snapshotFilter`: which rows the snapshot gives, and what becomes of those that enter or leave it.

A journal that a trigger writes tells what a keyed sink has to hold: from the part of the table that was read, the rows
for which the condition holds, and those that have been changed since they were read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException

from backfill.options import parse
from backfill.upstream.postgres import PostgresUpstream
from backfill.vnode import WHOLE_TABLE
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.keyed_sink import JOURNAL, Judge, KeyedSink, backfill_to_end
from integration.spark_stream import SparkStream, make_table
from integration.stream_harness import table_of
from integration.writers import BIGINT, TABLE, Writers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIZE = 1000
ENOUGH = 100_000
CONDITIONS = (
    "balance % 3 = 0 -- a third",
    "note IS DISTINCT FROM 'moved'",
    "balance < 100 AND note = 'moved'",
    "false",
)


@pytest.mark.parametrize("options", [{}, {"changelog": "full"}], ids=str)
def test_at_every_barrier_a_keyed_sink_holds_the_chosen_rows_and_those_changed_since(
    database: Database, start_stream: StartStream, options: Mapping[str, str], rng: Random
) -> None:
    """With `changelog=full` any sink does, because a row that comes first with a change is then an insert."""
    BIGINT.create(database, SIZE, identity="DEFAULT" if options else rng.choice(["DEFAULT", "FULL"]))
    database.execute(JOURNAL)
    condition = rng.choice(CONDITIONS)
    run = start_stream(TABLE, maxBytesPerTrigger="2500", snapshotFilter=condition, **options)
    run.restart(vnodeCount="7", numPartitions="3")
    run.select = BIGINT.select
    if not options:
        run.fold = KeyedSink(("id",))
    judge = Judge(run, condition)
    judge.batch(ENOUGH)
    with Writers(database, BIGINT, SIZE, rng, clients=3):
        while not run.backfilled or len(run.offsets) < 12:
            judge.batch(20 if rng.random() < 0.1 else ENOUGH)
            if rng.random() < 0.2:
                run.restart()
            elif rng.random() < 0.2 and run.plan(ENOUGH):
                expected = judge.expected(run.pin) if run.pin is not None else None
                run.read()  # all of it is staged; then the driver is killed and another one runs the batch again
                run.restart()
                run.commit(run.read())
                if expected is not None:
                    judge.require(expected)
    run.catch_up()
    run._require_sink(judge.expected(None))
    assert run.judged >= 3  # where no row is chosen, a batch looks at three of the seven vnodes
    assert judge.outside > 0
    run.stop()


def test_rows_that_enter_and_leave_come_as_the_readme_says(database: Database, start_stream: StartStream) -> None:
    table_of(database, 30)
    run = start_stream(vnodeCount="1", numPartitions="1", snapshotFilter="id % 10 = 1 OR v = 'in'")
    run.fold = KeyedSink(("id",))
    run.batch(2)
    assert [row["id"] for row in run.fold.rows.values()] == [1, 11]
    run.database.execute("UPDATE t SET v = 'in' WHERE id IN (2, 25); UPDATE t SET v = 'x' WHERE id IN (3, 26)")
    run.database.execute("UPDATE t SET id = -id WHERE id = 11; DELETE FROM t WHERE id IN (4, 21)")
    assert run.plan(1000)
    rows = sorted(run.read(), key=lambda row: row["_sequence"])
    run.commit(rows)
    assert [(row["_change_type"], row["id"], row["v"]) for row in rows] == [
        ("update_postimage", 2, "in"),
        ("update_postimage", 3, "x"),
        ("delete", 11, None),
        ("insert", -11, "v11"),
        ("delete", 4, None),
        ("insert", 25, "in"),
    ]
    assert run.barrier().progress.row_count == 3


def test_a_chunk_that_was_lost_is_read_again_with_the_rows_that_are_chosen_then(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 5)
    database.execute("UPDATE t SET v = 'in' WHERE id IN (1, 2)")
    run = start_stream(vnodeCount="1", numPartitions="1", snapshotFilter="v = 'in'")
    assert run.plan()
    run.restart()
    run.database.execute("UPDATE t SET v = CASE id WHEN 1 THEN 'out' ELSE 'in' END WHERE id IN (1, 3)")
    run.batch()
    run.catch_up()
    assert sorted(run.fold.rows) == [(2,), (3,)]
    run.fold = KeyedSink(("id",))
    run.database.execute("UPDATE t SET v = v || '+' WHERE id IN (1, 4)")
    run.catch_up()
    assert sorted(row["v"] for row in run.fold.rows.values()) == ["out+", "v4+"]


def test_where_no_row_is_chosen_the_backfill_ends_and_all_changes_follow(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 300)
    run = start_stream(snapshotFilter="v IS NULL", vnodeCount="8", numPartitions="2")
    backfill_to_end(run, 10)
    assert (run.fold.rows, run.barrier().progress.row_count) == ({}, 0)
    run.fold = KeyedSink(("id",))
    run.database.execute("UPDATE t SET v = 'x' WHERE id <= 7")
    run.catch_up()
    assert sorted(run.fold.rows) == [(number,) for number in range(1, 8)]


def test_a_snapshot_alone_has_the_chosen_rows(database: Database, start_stream: StartStream) -> None:
    table_of(database, 300)
    run = start_stream(snapshotFilter="t.id > 290", startupMode="snapshot", numPartitions="2")
    run.batch()
    assert sorted(run.fold.rows) == [(number,) for number in range(291, 301)]


def test_a_query_of_spark_has_the_chosen_rows(spark: SparkSession, database: Database, tmp_path: Path) -> None:
    make_table(database, 300)
    stream = SparkStream(spark, database, tmp_path, {"snapshotFilter": "id % 3 = 0", "maxRowsPerTrigger": "60"})
    stream.catch_up()
    assert sorted(row["id"] for row in stream.rows()) == list(range(3, 301, 3))
    with pytest.raises(AnalysisException, match="OptionsError: snapshotFilter is 'at < now"):
        stream.load(snapshotFilter="at < now()")
    plain = spark.read.format("backfill").options(**database.options, dbtable="t", snapshotFilter="id = 3")
    with pytest.raises(
        AnalysisException, match=r"snapshotFilter is for a stream.* as it is now, where filter chooses rows"
    ):
        plain.load()


def test_a_limit_of_what_gin_finds_leaves_out_no_row(database: Database, start_stream: StartStream) -> None:
    """With that limit the server takes only about as many rows from an index, at random and without a word."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a int[], v text); CREATE INDEX ON t USING gin (a);"
        "INSERT INTO t SELECT i, ARRAY[i % 50], repeat('x', 200) FROM generate_series(1, 50000) i"
    )
    database.execute("VACUUM ANALYZE t")
    database.execute(f"ALTER DATABASE {database.name} SET gin_fuzzy_search_limit = 50")
    run = start_stream(snapshotFilter="a @> ARRAY[7]", startupMode="snapshot", columns="id")
    run.batch(1_000_000)
    assert len(run.fold.rows) == 1000
    upstream = PostgresUpstream(parse({**database.options, "dbtable": "t", "filter": "a @> ARRAY[7]"}))
    try:
        assert sum(batch.num_rows for batch in upstream.reader().scan([WHOLE_TABLE])) == 1000
    finally:
        upstream.close()
