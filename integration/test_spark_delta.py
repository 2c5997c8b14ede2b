"""A Delta table in Spark: as a stream, as a batch, and as a table of Spark's catalog. There is no server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.errors import AnalysisException

from integration.fold import Fold, Row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 300
METADATA = ["_change_type", "_is_snapshot", "_commit_version", "_commit_timestamp", "_sequence"]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """`orders`, in two files that both have keys of the whole range."""
    folder = tmp_path / "my lake" / "orders"
    feed = {"delta.enableChangeDataFeed": "true"}
    for first in (0, 1):
        keys = list(range(first, ROWS, 2))
        rows = {"id": keys, "status": ["open" if key % 3 == 0 else "paid" for key in keys], "total": keys}
        write_deltalake(folder, pa.table(rows), mode="append", configuration=feed)
    return folder


def streamed(frame: DataFrame, folder: Path) -> list[Row]:
    """All rows that have come so far, once there is nothing more."""
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start(str(folder / "out")).awaitTermination()
    found: list[Row] = frame.sparkSession.read.parquet(str(folder / "out")).toArrow().to_pylist()
    return found


def require_equal(rows: list[Row], table: Path) -> Fold:
    fold = Fold(("id",))
    fold.apply(rows)
    assert fold.rows == {(row["id"],): row for row in pa.table(DeltaTable(table).scan()).to_pylist()}
    return fold


def test_a_stream_reads_the_table_and_then_its_changes_and_goes_on_after_a_restart(
    spark: SparkSession, table: Path, tmp_path: Path
) -> None:
    reader = spark.readStream.format("backfill").option("keyColumns", "id").option("maxRowsPerTrigger", "120")
    frame = reader.option("stateDir", str(tmp_path / "state")).load(str(table))
    assert frame.columns == ["id", "status", "total", *METADATA]
    assert require_equal(streamed(frame, tmp_path), table).counts == {"insert": ROWS}
    DeltaTable(table).update(updates={"id": "id + 1000"}, predicate="id < 5")
    DeltaTable(table).optimize.compact()
    DeltaTable(table).delete("status = 'open'")
    fold = require_equal(streamed(frame, tmp_path), table)
    # Moved keys come as a delete and an insert; the optimized files bring nothing.
    assert fold.counts == {"insert": ROWS + 5, "delete": 5 + ROWS // 3}


def test_a_batch_reads_the_table_as_it_is_now(spark: SparkSession, table: Path) -> None:
    reader = spark.read.format("backfill").option("path", str(table)).option("keyColumns", "id")
    assert reader.load().toArrow().sort_by("id").to_pylist() == [
        {"id": key, "status": "open" if key % 3 == 0 else "paid", "total": key} for key in range(ROWS)
    ]
    some = reader.option("columns", "total").option("filter", "status = 'open' AND id < 10 OR starts_with(status, 'x')")
    assert sorted(row.total for row in some.load().collect()) == [0, 3, 6, 9]
    with pytest.raises(AnalysisException, match=r"the option filter is not a condition .* in DuckDB's SQL"):
        reader.option("filter", "nope = 1").load()
    with pytest.raises(AnalysisException, match="there is no Delta table at /nowhere"):
        reader.option("filter", "").option("path", "/nowhere").load()


@pytest.fixture
def catalog(spark: SparkSession) -> Iterator[SparkSession]:
    spark.sql("CREATE DATABASE lake")
    spark.sql("USE lake")
    yield spark
    spark.sql("USE default")
    spark.sql("DROP DATABASE lake CASCADE")
    spark.sql("DROP VIEW IF EXISTS open_orders")


def test_sql_reads_it_as_a_table_a_view_and_a_stream(catalog: SparkSession, table: Path, tmp_path: Path) -> None:
    def create(kind: str, **options: Any) -> None:
        given = ", ".join(f"{name} '{value}'" for name, value in {"path": table, "keyColumns": "id", **options}.items())
        catalog.sql(f"CREATE {kind} USING backfill OPTIONS ({given})")

    create("TABLE orders")
    create("TABLE orders_feed", stateDir=tmp_path / "state")
    create("TEMPORARY VIEW open_orders", filter=r"status = \'open\'")
    assert catalog.sql("SELECT count(*), max(total) FROM orders WHERE id < 10").collect() == [(10, 9)]
    assert catalog.table("open_orders").count() == ROWS // 3
    require_equal(streamed(catalog.readStream.table("orders_feed"), tmp_path), table)
    catalog.sql("DROP TABLE orders")
    assert DeltaTable(table).version() == 1, "the table of Spark's catalog is not the one of Delta"
    assert catalog.sql("SELECT _change_type FROM orders_feed WHERE id = 3").collect() == [("insert",)]
