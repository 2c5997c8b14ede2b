"""Where a stream is, as tables that can be read while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException

from integration.database import Database
from integration.spark_stream import SparkStream, make_table, wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 3000


@pytest.fixture
def stream(spark: SparkSession, database: Database, tmp_path: Path) -> SparkStream:
    make_table(database, ROWS)
    return SparkStream(spark, database, tmp_path, {"maxRowsPerTrigger": "500", "numPartitions": "1"})


def view(stream: SparkStream, name: str) -> DataFrame:
    """One look at the view: what a DataFrame shows stays as it is."""
    return stream.spark.read.format("backfill").option("view", name).option("stateDir", str(stream.state)).load()


def test_progress_and_summary_are_read_while_the_stream_runs(spark: SparkSession, stream: SparkStream) -> None:
    with stream.running() as query:
        wait_for((stream.state / "backfill.duckdb").exists, query)
        seen: list[int] = []
        while not seen or seen[-1] < ROWS:
            done = view(stream, "progress").selectExpr("coalesce(sum(row_count), 0)", "count(*)").collect()
            seen.append(done[0][0])
            assert done[0][1] in (0, 16)
            assert query.exception() is None
        assert seen == sorted(seen)
        wait_for(lambda: view(stream, "summary").collect()[0].phase == "changes", query)
        (summary,) = view(stream, "summary").collect()
    assert summary.table == '"public"."t"'
    assert (summary.snapshot_rows, summary.vnodes, summary.vnodes_completed) == (ROWS, 16, 16)
    assert summary.epoch >= ROWS // 500
    rows = view(stream, "progress")
    assert rows.dtypes == [
        ("vnode", "int"),
        ("id", "bigint"),
        ("backfill_finished", "boolean"),
        ("row_count", "bigint"),
    ]
    assert rows.where("backfill_finished").count() == 16
    spark.sql(f"CREATE TABLE where_it_is USING backfill OPTIONS (view 'summary', stateDir '{stream.state}')")
    try:
        assert spark.sql("SELECT snapshot_rows FROM where_it_is").collect() == [(ROWS,)]
    finally:
        spark.sql("DROP TABLE where_it_is")
    looked = spark.read.format("backfill").option("view", "summary").option("stateDir", str(stream.state))
    for columns, wrong in (
        ("foo BIGINT, epoch BIGINT", "foo bigint"),
        ("epoch BIGINT NOT NULL", "epoch bigint not null"),
        ("stream INT, vnodes ARRAY<INT>", "stream int, vnodes array<int>"),
    ):
        with pytest.raises(AnalysisException, match=rf"view summary has the columns .* and not {wrong}\. load"):
            looked.schema(columns).load().collect()
    stream.require_equal()


def test_a_key_column_that_is_called_like_one_of_ours_has_the_name_that_it_has_in_the_file(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    database.execute('CREATE TABLE t (vnode int, "Row_Count" int, PRIMARY KEY (vnode, "Row_Count"))')
    database.execute("INSERT INTO t SELECT i, -i FROM generate_series(1, 50) i; ANALYZE t")
    stream = SparkStream(spark, database, tmp_path, {"vnodeCount": "2"})
    stream.catch_up()
    rows = view(stream, "progress")
    assert rows.columns == ["vnode", "vnode_", "Row_Count_", "backfill_finished", "row_count"]
    assert rows.selectExpr("sum(row_count)", "max(vnode)").first() == (50, 1)


def test_a_view_needs_a_stream(stream: SparkStream) -> None:
    with pytest.raises(AnalysisException, match=r"there is no backfill\.duckdb in"):
        view(stream, "summary")
    with pytest.raises(AnalysisException, match="stateDir is required for a view"):
        stream.spark.read.format("backfill").option("view", "progress").load()
