"""A stream does in Spark what its documentation says, whatever the trigger, however often it is stopped."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from integration.database import Database
from integration.spark_stream import SparkStream, batches, figures, make_table, sessions, slots, wait_for, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE_COLUMNS = [("id", "bigint"), ("v", "string"), ("n", "decimal(12,2)"), ("at", "timestamp")]
METADATA_COLUMNS = [
    ("_change_type", "string"),
    ("_is_snapshot", "boolean"),
    ("_commit_version", "bigint"),
    ("_commit_timestamp", "timestamp"),
    ("_sequence", "bigint"),
]


@pytest.fixture
def stream(spark: SparkSession, database: Database, tmp_path: Path) -> SparkStream:
    """A stream of `t`, some ten batches long."""
    make_table(database, 1000)
    return SparkStream(spark, database, tmp_path, {"maxRowsPerTrigger": "100"})


def test_spark_finds_the_source_by_itself(stream: SparkStream) -> None:
    assert stream.load().isStreaming
    assert stream.load().dtypes == TABLE_COLUMNS + METADATA_COLUMNS


def test_a_run_with_available_now_reads_all_and_ends(stream: SparkStream) -> None:
    found = stream.catch_up()
    assert max(progress.numInputRows for progress in found) <= 100
    assert sum(progress.numInputRows for progress in found) == 1000
    assert stream.require_equal().counts == {"insert": 1000}
    require_figures([figures(progress) for progress in found])
    write(stream.database, 10)
    (last,) = stream.catch_up()
    assert last.numInputRows == 100 + 100 + 2 * 100 + 1
    stream.require_equal()


def require_figures(told: list[dict[str, Any]]) -> None:
    """Progress tells how far the backfill is."""
    assert [item["phase"] for item in told] == ["snapshot"] * (len(told) - 1) + ["changes"]
    for name, end in (("snapshot_rows", 1000), ("vnodes_completed", 16)):
        values = [item[name] for item in told]
        assert values == sorted(values)
        assert values[-1] == end
    assert {item["vnodes"] for item in told} == {16}
    assert all(item["lag_bytes"] >= 0 and item["retained_bytes"] >= 0 for item in told)


def test_changes_come_while_the_query_runs(stream: SparkStream) -> None:
    with stream.running() as query:
        for step in (7, 5, 9, 4):
            write(stream.database, step)
            wait_for(lambda: len(batches(query)) > 1, query)
        query.processAllAvailable()
        fold = stream.require_equal()
        assert fold.counts.keys() >= {"update_postimage", "delete"}
        write(stream.database, 3)
        query.processAllAvailable()
    stream.require_equal()


def test_a_trigger_may_leave_time_between_batches(stream: SparkStream) -> None:
    query = stream.start({"processingTime": "300 milliseconds"})
    try:
        wait_for(lambda: len(batches(query)) > 2, query)
        write(stream.database, 6)
        query.processAllAvailable()
    finally:
        query.stop()
    stream.require_equal()


def test_a_stopped_backfill_goes_on_where_it_was_with_any_number_of_readers(stream: SparkStream) -> None:
    for readers, step in (("1", 11), ("3", 7), ("2", 13)):
        with stream.running(stream.load(numPartitions=readers)) as query:
            wait_for(lambda query=query: len(batches(query)) >= 2, query)  # type: ignore[misc]  # mypy/15459
        write(stream.database, step)
    assert len(slots(stream.database)) == 1
    assert len(stream.fold().rows) < 1000
    stream.catch_up()
    stream.require_equal()


def test_a_stream_may_begin_with_changes_only(stream: SparkStream) -> None:
    latest = stream.load(startupMode="latest")
    assert stream.catch_up(latest) == []
    stream.database.execute("UPDATE t SET v = 'later' WHERE id = 7")
    stream.catch_up(latest)
    (row,) = stream.rows()
    assert (row["id"], row["v"], row["_change_type"], row["_is_snapshot"]) == (7, "later", "update_postimage", False)


def test_a_stream_may_be_the_snapshot_only_and_then_needs_no_slot(stream: SparkStream) -> None:
    snapshot = stream.load(startupMode="snapshot")
    (batch,) = stream.catch_up(snapshot)
    assert batch.numInputRows == 1000
    assert slots(stream.database) == []
    stream.require_equal()
    stream.database.execute("UPDATE t SET v = 'later' WHERE id = 7")
    assert stream.catch_up(snapshot) == []


def test_an_idle_stream_leaves_the_database_alone(stream: SparkStream) -> None:
    """Spark asks every 11 ms whether there is something new. An upper bound of a rate: a slow machine keeps it."""
    with stream.running() as query:
        query.processAllAvailable()
        before, began = statements(stream.database), time.monotonic()
        time.sleep(3)
        count, seconds = statements(stream.database) - before, time.monotonic() - began
    assert count <= 30 * seconds + 30


def statements(database: Database) -> int:
    """Transactions so far, and each statement of an idle stream is one; the server adds them up every second."""
    ((count,),) = database.execute(
        "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = %s", [database.name]
    )
    return int(count)


def test_only_some_columns_are_carried(stream: SparkStream) -> None:
    some = stream.load(columns="v, id")
    assert some.dtypes == [("v", "string"), ("id", "bigint"), *METADATA_COLUMNS]
    stream.catch_up(some)
    write(stream.database, 10)
    stream.catch_up(some)
    stream.require_equal("v, id")


def test_the_key_need_not_be_among_the_columns(stream: SparkStream) -> None:
    some = stream.load(columns="v")
    assert some.dtypes == [("v", "string"), *METADATA_COLUMNS]
    stream.catch_up(some)
    assert Counter(row["v"] for row in stream.rows()) == Counter(f"v{i}" for i in range(1, 1001))


def test_columns_may_have_other_types(stream: SparkStream) -> None:
    other = stream.load(customSchema="n DECIMAL(20,4), at STRING")
    assert dict(other.dtypes)["n"] == "decimal(20,4)"
    stream.catch_up(other)
    write(stream.database, 10)
    stream.catch_up(other)
    stream.require_equal("id, v, n, at::text")


def test_two_streams_follow_one_table_without_knowing_each_other(stream: SparkStream) -> None:
    other = SparkStream(stream.spark, stream.database, stream.folder / "other", {"maxRowsPerTrigger": "170"})
    with stream.running() as query, other.running() as second:
        for step in (9, 7):
            write(stream.database, step)
            wait_for(lambda: bool(batches(query)) and bool(batches(second)), query)
        assert len(slots(stream.database)) == 2
        query.processAllAvailable()
        second.processAllAvailable()
    stream.require_equal()
    other.require_equal()


def test_two_queries_on_one_state_directory_are_refused(stream: SparkStream) -> None:
    """As happens when one DataFrame is started twice; the first query is none the worse for it."""
    from pyspark.errors import StreamingQueryException  # noqa: PLC0415 - reads the environment

    frame = stream.load()
    other = replace(stream, folder=stream.folder / "other")
    with stream.running(frame) as query, other.running(frame) as second:
        with pytest.raises(StreamingQueryException, match=r"is used by another query \(process \d+\)\. Stop that one"):
            second.awaitTermination()
        write(stream.database, 10)
        query.processAllAvailable()
    stream.require_equal()


def test_a_stream_may_be_used_twice_in_one_query(stream: SparkStream) -> None:
    frame = stream.load()
    stream.catch_up(frame.union(frame))
    write(stream.database, 10)
    stream.catch_up(frame.union(frame))
    twice = Counter((row["id"], row["_sequence"], row["_change_type"]) for row in stream.rows())
    assert len(twice) == 1000 + 401
    assert set(twice.values()) == {2}


def test_a_stopped_query_leaves_no_session_behind(stream: SparkStream) -> None:
    with stream.running() as query:
        wait_for(lambda: len(batches(query)) > 1, query)
        assert sessions(stream.database) > 0
    wait_for(lambda: sessions(stream.database) == 0)
