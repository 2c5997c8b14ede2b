"""What the documentation shows is run as it stands there, against a database of our own."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from backfill.sinks.postgres import apply_to
from integration.database import Database
from tests.docs.pages import chapter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TABLE = """
    CREATE TABLE orders (id bigint PRIMARY KEY, status text, total numeric(10,2) UNIQUE);
    INSERT INTO orders SELECT i, CASE WHEN i % 3 = 0 THEN 'open' ELSE 'paid' END, i FROM generate_series(1, 300) i;
"""


@pytest.fixture
def orders(database: Database) -> Database:
    database.execute(TABLE)
    return database


def blocks(heading: str) -> list[tuple[str, str]]:
    """The language and the text of each block of code below this heading."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", chapter(heading), flags=re.MULTILINE | re.DOTALL)
    return [(language, code) for language, code in found if language in ("python", "sql")]


def run(
    heading: str, spark: SparkSession, database: Database | None, folder: Path, only: slice = slice(None), **known: Any
) -> dict[str, Any]:
    """Runs the blocks in order, all or only some of them; returns the names that they define, and those `known`."""
    names: dict[str, Any] = {"spark": spark, **known}
    for language, text in blocks(heading)[only]:
        here = text.replace("/data/", f"{folder}/")
        if database is not None:
            here = re.sub(r"postgresql://app@db/shop(\?passfile=[\w/]+)?", database.url(folder), here)
        if language == "python":
            exec(compile(here, heading, "exec"), names)  # noqa: S102 - our own text
        else:
            for statement in filter(str.strip, here.split(";\n")):
                names["_"] = spark.sql(statement).collect()
    return names


CHANGES = """
    UPDATE orders SET id = -id WHERE id < 9; DELETE FROM orders WHERE id > 290;
    UPDATE orders SET total = -1 WHERE id = 20; UPDATE orders SET total = 20 WHERE id = 21;
    UPDATE orders SET total = 21 WHERE id = 20;
"""
"""Two rows exchange a value that is unique; applied row by row they would both have it for a moment."""


def make_copy(heading: str, database: Database) -> None:
    """Makes the table that a stream is copied to, with the statement in the text."""
    (statement,) = re.findall(r"`(CREATE TABLE orders_copy [^`]*)`", chapter(heading))
    database.execute(statement)


def test_the_quickstart(spark: SparkSession, orders: Database, tmp_path: Path) -> None:
    make_copy("Quickstart", orders)
    above = run("pyspark-backfill", spark, orders, tmp_path)
    names = run("Quickstart", spark, orders, tmp_path, orders=above["orders"])
    try:
        names["query"].processAllAvailable()
        orders.execute(CHANGES)
        names["query"].processAllAvailable()
        assert orders.execute("TABLE orders_copy ORDER BY id") == orders.execute("TABLE orders ORDER BY id")
    finally:
        names["query"].stop()


def test_reading_the_table_as_it_is_now(spark: SparkSession, orders: Database, tmp_path: Path) -> None:
    names = run("Reading the table as it is now", spark, orders, tmp_path)
    try:
        assert names["open_orders"].count() == 67
        snapshot = spark.table("orders_snapshot")
        assert snapshot.count() == 300
        assert snapshot.select("_commit_version").distinct().count() == 1
    finally:
        spark.sql("DROP TABLE orders_snapshot")


def test_reading_the_changes_between_two_positions(spark: SparkSession, orders: Database, tmp_path: Path) -> None:
    heading = "Reading the changes between two positions"
    for statement in blocks(heading)[0][1].split(";\n"):
        orders.execute(statement)
    orders.execute("UPDATE orders SET status = 'paid' WHERE id < 10; DELETE FROM orders WHERE id = 1")
    names = run(heading, spark, orders, tmp_path, slice(1, None))
    assert names["changes"].groupBy("_change_type").count().orderBy("count").collect() == [
        ("delete", 1),
        ("update_postimage", 9),
    ]


def test_sql_and_watching(spark: SparkSession, orders: Database, tmp_path: Path) -> None:
    spark.sql("CREATE DATABASE readme")
    spark.sql("USE readme")
    names: dict[str, Any] = {}
    try:
        names = run("SQL", spark, orders, tmp_path)
        assert spark.table("orders").columns == ["id", "status", "total"]
        assert spark.table("open_orders").count() == 100
        assert names["by_sql"].columns == spark.table("orders_feed").columns
        query = run_to_end(names["by_name"], tmp_path / "checkpoint")
        names = run("Watching", spark, orders, tmp_path, query=query)
        assert names["where"].reported.snapshot_rows == 300
        assert names["look"]("summary").collect()[0].snapshot_rows == 300
    finally:
        if "listener" in names:
            names["listener"].close()
            spark.streams.removeListener(names["listener"])
        spark.sql("USE default")
        spark.sql("DROP DATABASE readme CASCADE")
        spark.sql("DROP VIEW IF EXISTS open_orders")


def test_whole_rows_before_and_after(spark: SparkSession, orders: Database, tmp_path: Path) -> None:
    changes = run("Whole rows before and after", spark, orders, tmp_path)["changes"]
    query = changes.writeStream.format("memory").queryName("whole_rows").start()
    try:
        query.processAllAvailable()
        orders.execute("UPDATE orders SET status = 'sent' WHERE id = 3; DELETE FROM orders WHERE id = 3")
        query.processAllAvailable()
        changed = spark.table("whole_rows").where("NOT _is_snapshot").orderBy("_sequence").collect()
        assert [(row._change_type, row.id, row.status, row.total) for row in changed] == [
            ("update_preimage", 3, "open", 3),
            ("update_postimage", 3, "sent", 3),
            ("delete", 3, "sent", 3),
        ]
        assert '"state_file_bytes": ' in query.lastProgress["sources"][0]["latestOffset"]
    finally:
        query.stop()
        spark.sql("DROP VIEW whole_rows")


def test_into_a_keyed_table(spark: SparkSession, orders: Database, tmp_path: Path) -> None:
    heading = "Into a keyed table"
    make_copy(heading, orders)
    names = run(heading, spark, orders, tmp_path, slice(1))
    try:
        names["query"].processAllAvailable()
        orders.execute(CHANGES)
        names["query"].processAllAvailable()
        difference = "(TABLE {} EXCEPT TABLE {})".format
        assert orders.execute(difference("orders", "orders_copy")) == []
        assert orders.execute(difference("orders_copy", "orders")) == []
    finally:
        names["query"].stop()
    run(heading, spark, orders, tmp_path, slice(1, 2))
    assert orders.execute("TABLE orders_copy") == orders.execute("TABLE backfill_batches") == []
    names = run(heading, spark, orders, tmp_path, slice(2, None))
    try:
        names["query"].processAllAvailable()
        rows = DeltaTable(tmp_path / "lake" / "orders").to_pyarrow_table().to_pylist()
        assert sorted(tuple(row.values()) for row in rows) == orders.execute("TABLE orders ORDER BY id")
    finally:
        names["query"].stop()


def test_a_commit_that_spark_has_lost_is_written_again(spark: SparkSession, orders: Database, tmp_path: Path) -> None:
    """The stream has recorded the batch, which therefore cannot be run again."""
    from pyspark.errors import StreamingQueryException  # noqa: PLC0415

    make_copy("Quickstart", orders)
    feed = spark.readStream.format("backfill").option("url", orders.url(tmp_path)).option("dbtable", "orders")
    stream = feed.option("stateDir", str(tmp_path / "state")).load()
    apply_batch = apply_to(url=orders.url(tmp_path), table="orders_copy", key=["id"], query="orders")
    writer = stream.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).foreachBatch(apply_batch)

    def catch_up() -> None:
        writer.trigger(availableNow=True).start().awaitTermination()

    catch_up()
    orders.execute(CHANGES)
    catch_up()
    commit = tmp_path / "checkpoint" / "commits" / "1"
    commit.write_bytes(b"")
    with pytest.raises(StreamingQueryException, match="Incomplete log file"):
        catch_up()
    commit.unlink()
    commit.with_name(".1.crc").unlink()
    with pytest.raises(StreamingQueryException, match="StateError: the checkpoint is at"):
        catch_up()

    (command,) = re.findall(r"`(printf [^`]*)`", chapter("Storage"))
    subprocess.run(["sh", "-c", command.replace("commits/42", shlex.quote(str(commit)))], check=True)
    orders.execute("DELETE FROM orders WHERE id = 100")
    catch_up()
    assert orders.execute("TABLE orders_copy ORDER BY id") == orders.execute("TABLE orders ORDER BY id")


def test_a_delta_table_needs_no_server(spark: SparkSession, tmp_path: Path) -> None:
    try:
        names = run("Delta Lake", spark, None, tmp_path)
        assert dict(spark.table("orders_log").groupBy("_change_type").count().collect()) == {
            "insert": 1000,
            "delete": 10,
        }
        assert names["open_orders"].count() == 90
        assert names["changes"].where("_change_type = 'delete' AND _commit_version = 1").count() == 10
        assert names["_"] == [(990,)]
    finally:
        spark.sql("DROP TABLE IF EXISTS orders_log")
        spark.sql("DROP TABLE IF EXISTS lake_orders")


def run_to_end(stream: DataFrame, checkpoint: Path) -> StreamingQuery:
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def test_what_is_shown_of_pipelines_is_in_their_projects() -> None:
    """`test_spark_pipelines` runs those projects."""
    projects = "\n".join(
        file.read_text() for file in (Path(__file__).parent / "pipelines").rglob("*/transformations/*")
    )
    shown = blocks("Declarative pipelines")
    assert len(shown) == 3
    for _, text in shown:
        assert text in projects
