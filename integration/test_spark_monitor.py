"""What a running query tells of its stream: `progress(query)` and the metrics for Prometheus."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from backfill.__main__ import main
from backfill.spark.monitor import progress
from backfill.spark.prometheus import PrometheusListener
from integration.database import Database
from integration.spark_stream import SparkStream, batches, make_table, wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import QueryProgressEvent
    from pyspark.sql.streaming.query import StreamingQuery

    from integration.databases import Databases

ROWS = 3000
SAMPLE = re.compile(r'(backfill_\w+)\{((?:\w+="(?:[^"\\\n]|\\[\\"n])*",?)*)\} ([0-9.e+-]+)')


def samples(text: str, query: StreamingQuery, table: str = "") -> dict[str, float]:
    """A query's numbers by name, and by phase where they have one; with `table`, only those of the table. Fails on a
    line that is not of the format.

    The listener may also hear of a query that ended before it was added, because Spark tells of that later.
    """
    found: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith("# "):
            matched = SAMPLE.fullmatch(line)
            assert matched, line
            phase = re.search('phase="(\\w+)"', matched[2])
            if f'query_id="{query.id}"' in matched[2] and _of_table(table) in matched[2]:
                found[matched[1] + (f" {phase[1]}" if phase else "")] = float(matched[3])
    return found


def _of_table(name: str) -> str:
    escaped = name.replace('"', '\\"')
    return f'table="{escaped}"' if name else ""


def test_a_query_reports_where_it_is_to_prometheus_too(spark: SparkSession, database: Database, tmp_path: Path) -> None:
    make_table(database, ROWS)
    stream = SparkStream(spark, database, tmp_path, {"maxRowsPerTrigger": "500", "numPartitions": "1"})
    listener = PrometheusListener()
    spark.streams.addListener(listener)
    port = listener.serve()
    try:
        with database.connect() as writer:
            writer.execute("CREATE TABLE other (id int)")  # The slot, and with it the first batch, waits for this.
            with stream.running() as query:
                assert progress(query).phase == "starting"
                writer.commit()
                wait_for(lambda: progress(query).phase == "changes", query)
                query.processAllAvailable()
                database.execute("UPDATE t SET v = 'changed' WHERE id <= 10")
                query.processAllAvailable()
                database.execute("UPDATE t SET v = 'again' WHERE id <= 20")
                query.processAllAvailable()
                # Spark may say so a moment before it says that it waits for data.
                wait_for(lambda: progress(query).lag_seconds == 0, query)
                seen = progress(query)
                rows = sum(each.numInputRows for each in batches(query))
                count = len(query.recentProgress)
                wait_for(lambda: samples(listener.text(), query).get("backfill_batches_total") == count, query)
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                    text = answer.read().decode()
        wait_for(lambda: samples(listener.text(), query)["backfill_query_active"] == 0)
        ended = progress(query)
    finally:
        listener.close()
        spark.streams.removeListener(listener)
    of = seen.reported
    assert of is not None
    assert (of.table, of.snapshot_rows, of.snapshot_rows_left, of.vnodes_completed) == ('"public"."t"', ROWS, 0, 16)
    # The rows of the last batch are counted when Spark asks for the next one.
    assert (of.changes_passed_on, of.changes_held_back) == (10, 0)
    assert (seen.active, ended.active, seen.batch, seen.lag_seconds) == (
        True,
        False,
        query.recentProgress[-1].batchId,
        0,
    )
    assert "phase changes, 3,000 rows read" in repr(seen)
    assert f"query {query.id}" in repr(ended)
    assert "16 of 16 vnodes, 100 %" in seen._repr_html_()
    found = samples(text, query)
    assert found["backfill_snapshot_rows_total"] == ROWS
    assert found["backfill_input_rows_total"] == rows == ROWS + 30
    assert found["backfill_changes_passed_on_total"] == 10
    assert (found["backfill_phase changes"], found["backfill_phase snapshot"]) == (1, 0)
    assert found["backfill_wal_retained_bytes"] > 0
    assert found["backfill_query_active"] == 1
    assert samples(listener.text(), query)["backfill_query_failed"] == 0
    assert f'query_id="{query.id}",query="",table="\\"public\\".\\"t\\""' in text
    assert str(database.options["url"]) not in text


def test_a_query_that_is_started_again_is_active_though_it_plans_no_batch(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    """There is nothing to read, or a batch to run again, about which Spark asks the source nothing."""
    make_table(database, 300)
    stream = SparkStream(spark, database, tmp_path)
    listener = PrometheusListener()
    fails = False

    def apply(_rows: DataFrame, _batch: int) -> None:
        if fails:
            raise OSError("the sink fails")

    def start() -> StreamingQuery:
        writer = stream.load().writeStream.foreachBatch(apply)
        return writer.option("checkpointLocation", str(stream.checkpoint)).start()

    def figure(query: StreamingQuery) -> tuple[float, ...]:
        found = samples(listener.text(), query)
        return tuple(found.get(f"backfill_{name}", -1) for name in ("query_active", "query_failed", "batches_total"))

    spark.streams.addListener(listener)
    try:
        query = start()
        query.processAllAvailable()
        count = len(query.recentProgress)
        query.stop()
        wait_for(lambda: figure(query) == (0, 0, count))
        query = start()
        wait_for(lambda: figure(query) == (1, 0, count))
        fails = True
        database.execute("UPDATE t SET v = 'changed' WHERE id = 1")
        with pytest.raises(StreamingQueryException, match="the sink fails"):
            query.awaitTermination()
        wait_for(lambda: figure(query) == (0, 1, count))
        fails = False
        query = start()
        try:
            wait_for(lambda: figure(query) == (1, 0, count + 1), query)
            assert (progress(query).phase, progress(query).reported) == ("starting", None)
            database.execute("UPDATE t SET v = 'again' WHERE id = 1")
            query.processAllAvailable()
            assert progress(query).phase == "changes"
        finally:
            query.stop()
    finally:
        spark.streams.removeListener(listener)


def test_a_query_that_waits_for_changes_is_reported_and_is_not_behind(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    make_table(database, 300)
    stream = SparkStream(spark, database, tmp_path, {})
    listener = PrometheusListener()
    interval = "spark.sql.streaming.noDataProgressEventInterval"

    def figure(name: str) -> float:
        return samples(listener.text(), query).get(f"backfill_{name}", -1)

    spark.streams.addListener(listener)
    spark.conf.set(interval, "200")
    try:
        with stream.running() as query:
            wait_for(lambda: progress(query).phase == "changes", query)
            database.execute("UPDATE t SET v = 'changed' WHERE id <= 10")
            query.processAllAvailable()
            # Spark tells of the batch with the changes when it likes.
            wait_for(
                lambda: (figure("input_rows_total"), figure("lag_bytes"), figure("lag_seconds")) == (310, 0, 0), query
            )
            heard, count = figure("last_heard_timestamp_seconds"), figure("batches_total")
            wait_for(lambda: figure("last_heard_timestamp_seconds") > heard, query)
            assert figure("batches_total") == count
    finally:
        spark.conf.unset(interval)
        spark.streams.removeListener(listener)


def test_rows_read_again_are_shown_and_that_more_of_them_are_held(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    make_table(database, 300)
    stream = SparkStream(spark, database, tmp_path, {})
    state = ("--state-dir", str(stream.state))
    listener = PrometheusListener()
    spark.streams.addListener(listener)
    try:
        with stream.running() as query:
            wait_for(lambda: progress(query).phase == "changes", query)
            assert main(["re-backfill", *state, "--from", "100", "--to", "219"]) == 0
            wait_for(lambda: "120 rows read again" in repr(progress(query)), query)
            assert main(["pause", *state]) == 0
            assert main(["re-backfill", *state]) == 0

            def heard() -> bool:
                # Spark tells with batches alone, and one that was being planned does not know of the pause yet.
                database.execute("UPDATE t SET v = 'later' WHERE id = 7")
                query.processAllAvailable()
                return "backfill_control_rows" in samples(listener.text(), query)

            wait_for(heard, query)
            found = samples(listener.text(), query)
            assert "phase changes (paused)" in repr(progress(query))
    finally:
        spark.streams.removeListener(listener)
    assert (found["backfill_control_rows"], found["backfill_phase changes"]) == (0, 1)
    assert found["backfill_again_rows"] == 120
    assert found["backfill_again_vnodes"] == found["backfill_again_vnodes_completed"] > 0


def test_tables_of_one_name_in_one_query_are_told_apart(
    spark: SparkSession, database: Database, databases: Databases, tmp_path: Path
) -> None:
    make_table(database, 77)
    stream = SparkStream(spark, database, tmp_path)
    first, second = '"public"."t"', '"public"."t"#2'
    listener = PrometheusListener()
    spark.streams.addListener(listener)
    try:
        with databases.database() as other:
            make_table(other, 300)
            elsewhere = stream.load(**other.options, stateDir=str(tmp_path / "elsewhere"))
            with stream.running(stream.load().union(elsewhere)) as query:
                wait_for(lambda: sum(each.numInputRows for each in batches(query)) == 377, query)
                with pytest.raises(ValueError, match=f"the query reads {first}, {second}; name one of them as table"):
                    progress(query)
                figure = [progress(query, table=name).reported for name in (first, second)]
                wait_for(
                    lambda: samples(listener.text(), query).get("backfill_batches_total") == len(query.recentProgress),
                    query,
                )
                text = listener.text()
    finally:
        spark.streams.removeListener(listener)
    assert [of and (of.table, of.snapshot_rows) for of in figure] == [(first, 77), (second, 300)]
    for name, rows in ((first, 77), (second, 300)):
        of_it = samples(text, query, name)
        assert (of_it["backfill_snapshot_rows_total"], of_it["backfill_input_rows_total"]) == (rows, rows)
        assert {"backfill_lag_seconds", "backfill_wal_retained_bytes"} <= of_it.keys()


class Heard(PrometheusListener):
    """Notes the queries that it has been told of, whatever it makes of them."""

    def __init__(self) -> None:
        super().__init__()
        self.of: set[str] = set()

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        super().onQueryProgress(event)
        self.of.add(str(event.progress.id))


def test_other_queries_are_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    listener = Heard()
    spark.streams.addListener(listener)
    try:
        writer = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "1").load().writeStream
        query = writer.format("noop").option("checkpointLocation", str(tmp_path)).start()
        try:
            wait_for(lambda: query.id in listener.of, query)
            with pytest.raises(ValueError, match="reads nothing from the backfill source"):
                progress(query)
        finally:
            query.stop()
    finally:
        spark.streams.removeListener(listener)
    # It may also have heard of a query of a test before: see `samples`.
    assert query.id not in listener.text()
