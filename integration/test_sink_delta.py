"""A Delta table follows a table of PostgreSQL through `foreachBatch`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from deltalake import DeltaTable

from backfill.sinks.delta import apply_to
from integration.database import Database
from integration.spark_stream import SparkStream, make_table, write

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession


def follow(stream: SparkStream, apply: Callable[[DataFrame, int], None]) -> None:
    writer = stream.load().writeStream.foreachBatch(apply).option("checkpointLocation", str(stream.checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


def require_equal(database: Database, table: Path) -> None:
    with (
        database.connect(options="-c timezone=UTC") as connection,
        connection.cursor(row_factory=psycopg.rows.dict_row) as cursor,
    ):
        expected = cursor.execute("SELECT * FROM t ORDER BY id").fetchall()
    assert DeltaTable(table).to_pyarrow_table().sort_by("id").to_pylist() == expected


def test_a_batch_that_is_applied_again_changes_nothing(spark: SparkSession, database: Database, tmp_path: Path) -> None:
    """This includes a batch that Spark runs again because the query died before Spark wrote its commit."""
    from pyspark.errors import StreamingQueryException  # noqa: PLC0415 - reads the environment

    make_table(database, 300)
    database.execute("ALTER TABLE t ADD raw bytea, ADD tags text[], ADD flag boolean, ADD day date")
    database.execute("ALTER TABLE t ADD deleted boolean, ADD _deleted boolean DEFAULT true, ADD c0 int DEFAULT 3")
    database.execute("UPDATE t SET deleted = id % 3 = 0")
    database.execute("UPDATE t SET raw = 'x', tags = '{a,NULL}', flag = id % 2 = 0, day = current_date WHERE id > 9")
    stream = SparkStream(spark, database, tmp_path, {"maxRowsPerTrigger": "120", "onTruncate": "emit"})
    table = tmp_path / "copy"
    apply = apply_to(path=str(table), key=["id"], query="t")
    applied: list[tuple[int, int]] = []

    def noted(batch: DataFrame, batch_id: int) -> None:
        apply(batch, batch_id)
        applied.append((batch_id, DeltaTable(table).version()))

    def dies(batch: DataFrame, batch_id: int) -> None:
        noted(batch, batch_id)
        write(database, 20 + batch_id)
        if batch_id == 1:
            raise RuntimeError("after the batch was applied")

    with pytest.raises(StreamingQueryException, match="after the batch was applied"):
        follow(stream, dies)
    follow(stream, noted)
    assert applied[:4] == [(0, 1), (1, 2), (1, 2), (2, 3)]
    require_equal(database, table)
    database.execute("TRUNCATE t; INSERT INTO t (id, v) VALUES (7, 'after'), (8, NULL)")
    follow(stream, apply)
    require_equal(database, table)
