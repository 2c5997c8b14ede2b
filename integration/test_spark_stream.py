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
from integration.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLE_COLUMNS = [("id", "bigint"), ("v", "string"), ("n", "decimal(12,2)"), ("at", "timestamp")]
METADATA_COLUMNS = [
    ("_change_type", "string"),
    ("_is_snapshot", "boolean"),
    ("_commit_version", "bigint"),
    ("_commit_timestamp", "timestamp"),
    ("_sequence", "bigint"),
]


ROWS = 300


@pytest.fixture
def stream(spark: SparkSession, database: Database, tmp_path: Path) -> SparkStream:
    """A stream of `t`, some three batches long."""
    make_table(database, ROWS)
    return SparkStream(spark, database, tmp_path, {"maxRowsPerTrigger": "100"})


def test_a_run_with_available_now_reads_all_and_ends(stream: SparkStream) -> None:
    frame = stream.load()
    assert frame.isStreaming
    assert frame.dtypes == TABLE_COLUMNS + METADATA_COLUMNS
    found = stream.catch_up(frame)
    assert max(progress.numInputRows for progress in found) <= 100
    assert sum(progress.numInputRows for progress in found) == ROWS
    assert stream.require_equal().counts == {"insert": ROWS}
    require_figures([figures(progress) for progress in found])
    write(stream.database, 10)
    (last,) = stream.catch_up(frame)
    assert last.numInputRows == 30 + 30 + 2 * 30 + 1
    stream.require_equal()


def require_figures(figures_seen: list[dict[str, Any]]) -> None:
    """Requires that progress tells how far the backfill is."""
    assert [item["phase"] for item in figures_seen] == ["snapshot"] * (len(figures_seen) - 1) + ["changes"]
    for name, end in (("snapshot_rows", ROWS), ("vnodes_completed", 16)):
        values = [item[name] for item in figures_seen]
        assert values == sorted(values)
        assert values[-1] == end
    assert {item["vnodes"] for item in figures_seen} == {16}
    assert all(item["lag_bytes"] >= 0 and item["retained_bytes"] >= 0 for item in figures_seen)


def test_changes_come_while_the_query_runs_and_it_leaves_the_database_alone_without_them(stream: SparkStream) -> None:
    with stream.running() as query:
        for step in (7, 5, 9):
            write(stream.database, step)
            wait_for(lambda: len(batches(query)) > 1, query)
        query.processAllAvailable()
        fold = stream.require_equal()
        assert fold.counts.keys() >= {"update_postimage", "delete"}
        require_rest(stream.database)
        write(stream.database, 3)
        query.processAllAvailable()
        assert sessions(stream.database) > 0
    stream.require_equal()
    wait_for(lambda: sessions(stream.database) == 0)


def require_rest(database: Database) -> None:
    """Requires that Spark, which asks every 11 ms for news, makes few statements: at most so many a second, which a
    slow machine keeps.

    The server adds up earlier statements for a while, which then count as if they were made now.
    """
    figures_seen: list[str] = []

    def rests() -> bool:
        before, began = statements(database), time.monotonic()
        time.sleep(2)
        count, seconds = statements(database) - before, time.monotonic() - began
        figures_seen.append(f"{count} statements in {seconds:.1f} s")
        return count <= 30 * seconds + 30

    eventually(rests, otherwise=lambda: str(figures_seen))


def statements(database: Database) -> int:
    """Transactions so far: each statement of an idle stream is one. The server adds them up every second."""
    ((count,),) = database.execute(
        "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = %s", [database.name]
    )
    return int(count)


def test_a_stopped_backfill_goes_on_where_it_was_with_any_number_of_readers_and_another_trigger(
    stream: SparkStream,
) -> None:
    for readers, step in (("1", 11), ("3", 7)):
        # The second batch would be an hour later.
        query = stream.start({"processingTime": "1 hour"}, stream.load(numPartitions=readers))
        try:
            wait_for(lambda query=query: len(batches(query)) == 1, query)  # type: ignore[misc]  # mypy/15459
        finally:
            query.stop()
        write(stream.database, step)
    assert len(slots(stream.database)) == 1
    assert len(stream.fold().rows) < ROWS
    query = stream.start({"processingTime": "200 milliseconds"}, stream.load(numPartitions="2"))
    try:
        wait_for(lambda: len(batches(query)) > 1, query)
        write(stream.database, 6)
        query.processAllAvailable()
    finally:
        query.stop()
    stream.require_equal()


def test_a_stream_may_begin_with_changes_only(stream: SparkStream) -> None:
    latest = stream.load(startupMode="latest")
    assert stream.catch_up(latest) == []
    stream.database.execute("UPDATE t SET v = 'later' WHERE id = 7")
    stream.catch_up(latest)
    (row,) = stream.rows()
    assert (row["id"], row["v"], row["_change_type"], row["_is_snapshot"]) == (7, "later", "update_postimage", False)


def test_only_some_columns_are_carried_in_the_order_and_with_the_types_one_asks_for(stream: SparkStream) -> None:
    some = stream.load(columns="v, id, at, n", customSchema="n DECIMAL(20,4), at STRING")
    wanted = [("v", "string"), ("id", "bigint"), ("at", "string"), ("n", "decimal(20,4)")]
    assert some.dtypes == wanted + METADATA_COLUMNS
    stream.catch_up(some)
    write(stream.database, 10)
    stream.catch_up(some)
    stream.require_equal("v, id, at::text, n")


def test_only_some_metadata_is_carried(stream: SparkStream) -> None:
    some = stream.load(metadataColumns="_sequence,_change_type")
    assert some.dtypes[-2:] == [("_change_type", "string"), ("_sequence", "bigint")]
    assert len(some.dtypes) == len(stream.load().dtypes) - 3
    stream.catch_up(some)
    stream.database.execute("UPDATE t SET v = 'later' WHERE id = 7; DELETE FROM t WHERE id = 8")
    stream.catch_up(some)
    by_key = sorted((row["_sequence"], row["id"], row["_change_type"]) for row in stream.rows() if row["id"] in (7, 8))
    assert [(key, kind) for _, key, kind in by_key[-2:]] == [(7, "update_postimage"), (8, "delete")]


def test_a_snapshot_alone_may_be_the_table_and_nothing_else(stream: SparkStream) -> None:
    bare = stream.load(startupMode="snapshot", metadataColumns="none")
    assert bare.dtypes == stream.load().dtypes[: -len(METADATA_COLUMNS)]
    stream.catch_up(bare)
    assert sorted(row["id"] for row in stream.rows()) == list(range(1, ROWS + 1))


def test_streams_of_one_table_know_nothing_of_each_other_unless_they_share_a_state_directory(
    stream: SparkStream,
) -> None:
    """They share one where one DataFrame is started twice, which does not harm the first query."""
    from pyspark.errors import StreamingQueryException  # noqa: PLC0415 - reads the environment

    frame = stream.load()
    twin = replace(stream, folder=stream.folder / "twin")
    other = replace(stream, folder=stream.folder / "other")
    with stream.running(frame) as query, other.running() as second:
        wait_for(lambda: bool(batches(query)), query)
        with (
            twin.running(frame) as third,
            pytest.raises(
                StreamingQueryException, match=r"is used by another query \(process \d+\), or twice by this one"
            ),
        ):
            third.awaitTermination()
        write(stream.database, 10)
        query.processAllAvailable()
        second.processAllAvailable()
        assert len(slots(stream.database)) == 2
    stream.require_equal()
    other.require_equal()


@pytest.mark.parametrize("wrong", [{"filter": "id > 7"}, {}], ids=["by its options", "by its database"])
def test_a_query_that_one_source_ends_lets_go_of_the_others(stream: SparkStream, wrong: dict[str, str]) -> None:
    """Otherwise it could not be started again: an unknown Spark process would hold the state of the others."""
    from pyspark.errors import StreamingQueryException  # noqa: PLC0415 - reads the environment

    stream.database.execute("CREATE TABLE u (LIKE t INCLUDING ALL); INSERT INTO u SELECT * FROM t")
    second = {"dbtable": "u", "stateDir": str(stream.folder / "second")}
    frames = [stream.load().unionAll(stream.load(**second, **options)) for options in (wrong, {})]
    stream.database.execute("ALTER TABLE u RENAME TO gone")
    with pytest.raises(StreamingQueryException, match=r"filter is for spark\.read" if wrong else r"no table .*u"):
        stream.catch_up(frames[0])
    stream.database.execute("ALTER TABLE gone RENAME TO u")
    stream.catch_up(frames[1])
    assert len(stream.rows()) == 2 * ROWS


def test_a_new_checkpoint_resumes_where_nothing_has_happened_since(stream: SparkStream) -> None:
    stream.catch_up()
    options = {**stream.options, "stateDir": str(stream.state), "onExistingState": "resume"}
    new = replace(stream, folder=stream.folder / "new", options=options)
    assert new.catch_up() == []
    write(stream.database, 10)
    new.catch_up()
    assert {row["_is_snapshot"] for row in new.rows()} == {False}
    fold = stream.fold()
    fold.apply(new.rows())
    assert set(fold.rows) == set(stream.database.execute("SELECT id FROM t"))


def test_a_stream_may_be_used_twice_in_one_query(stream: SparkStream) -> None:
    frame = stream.load()
    twice = frame.union(frame)
    stream.catch_up(twice)
    write(stream.database, 10)
    stream.catch_up(twice)
    seen = Counter((row["id"], row["_sequence"], row["_change_type"]) for row in stream.rows())
    assert len(seen) == ROWS + 121
    assert set(seen.values()) == {2}


def test_the_dataframe_of_a_batch_that_is_over_is_reported_as_read_too_late(stream: SparkStream) -> None:
    """It is not only said that a connection or a file was lost, or that stagingDir is not shared."""
    from pyspark.errors import PythonException  # noqa: PLC0415 - reads the environment

    kept: list[DataFrame] = []

    def require_told(error: str) -> None:
        with pytest.raises(PythonException, match=rf"{error}: .*read the DataFrame of foreachBatch"):
            kept[0].count()

    def keep(batch: DataFrame, _: int) -> None:
        kept.append(batch)
        if len(kept) == 2:
            require_told("SnapshotGoneError")

    writer = stream.load().writeStream.foreachBatch(keep)
    writer.option("checkpointLocation", str(stream.checkpoint)).trigger(availableNow=True).start().awaitTermination()
    assert len(kept) > 2
    require_told("StagingError")
