"""Streams that begin with the snapshot, without it, or have nothing else."""

from __future__ import annotations

from backfill.plan import MIN_SPLIT_ROWS
from backfill.progress import Finished
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.stream_harness import churn, table_of


def test_startup_mode_latest_begins_with_what_happens_next(database: Database, start_stream: StartStream) -> None:
    table_of(database, 100)
    run = start_stream(startupMode="latest")
    assert run.batch()
    assert not run.batch()
    database.execute("INSERT INTO t VALUES (101, 'new'); UPDATE t SET v = 'newer' WHERE id = 101")
    run.catch_up()
    run.restart()
    database.execute("DELETE FROM t WHERE id = 101; INSERT INTO t VALUES (102, 'new')")
    run.catch_up()
    assert run.fold.counts == {"insert": 2, "update_postimage": 1, "delete": 1}
    assert isinstance(run.barrier().progress, Finished)


def test_startup_mode_snapshot_is_one_batch_of_one_state(database: Database, start_stream: StartStream) -> None:
    table_of(database, 2 * MIN_SPLIT_ROWS)
    run = start_stream(startupMode="snapshot", numPartitions="2", vnodeCount="4")
    run.plan(10)
    judge = run.judge()
    churn(database, 1)
    parts = run.parts()
    assert len(parts) == 2
    rows = run.read_part(parts[0])
    churn(database, 2)
    run.commit(rows + run.read_part(parts[1]))
    judge()
    assert not run.batch()
    run.restart()
    assert not run.batch()
    assert database.execute("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()") == []


def test_a_snapshot_that_was_read_in_part_is_read_again_as_a_whole(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 2 * MIN_SPLIT_ROWS)
    run = start_stream(startupMode="snapshot", numPartitions="2", vnodeCount="4")
    run.plan()
    run.read_part(run.parts()[0])
    run.restart()
    churn(database, 1)
    run.batch()
    run.require_equal()
