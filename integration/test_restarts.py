"""Streams that stop at any moment and go on, and the tables, modes and servers they go on with."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from backfill.plan import MIN_SPLIT_ROWS
from backfill.state_dir.files import open_store
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.stream_harness import StreamRun, churn, table_of


def planned_and_forgotten(run: StreamRun) -> None:
    run.ask(40)


def planned(run: StreamRun) -> None:
    run.plan(40)


def partly_handed_out(run: StreamRun) -> None:
    run.plan(40)
    run.parts()


def read_and_not_committed(run: StreamRun) -> None:
    run.plan(40)
    run.read()


def committed(run: StreamRun) -> None:
    run.batch(40)


STOPS = [planned_and_forgotten, planned, partly_handed_out, read_and_not_committed, committed]


@pytest.mark.parametrize("stop", STOPS, ids=lambda stop: stop.__name__.replace("_", " "))
def test_a_driver_that_stops_at_this_point_of_every_batch_loses_nothing(
    database: Database, start_stream: StartStream, stop: Callable[[StreamRun], None]
) -> None:
    table_of(database, 300)
    run = start_stream(vnodeCount="5", numPartitions="2")
    for number in range(12):
        stop(run)
        run.restart()
        churn(database, number)
        if number % 3:
            run.batch(40)
    run.finish()


def test_a_batch_that_was_read_gives_the_same_rows_again(database: Database, start_stream: StartStream) -> None:
    table_of(database, 300)
    run = start_stream(vnodeCount="5", numPartitions="2")
    number = 0
    while run.plan(50):
        number += 1
        rows = run.read()
        if number < 12:
            churn(database, number)
        run.restart(numPartitions=str(1 + number % 3))
        assert run.read() == rows
        run.commit(rows)
    run.finish()


def test_a_chunk_that_was_not_read_before_the_stop_is_read_at_a_later_state(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 3 * MIN_SPLIT_ROWS)
    run = start_stream(vnodeCount="6", numPartitions="3")
    run.plan(10_000_000)
    parts = run.parts()
    assert len(parts) == 3
    run.read_part(parts[1])
    run.restart()
    churn(database, 1)
    rows = run.read()
    churn(database, 2)
    run.restart()
    assert run.read() == rows
    run.commit(rows)
    run.finish()


def test_the_end_of_a_batch_that_is_asked_for_twice_is_the_same(database: Database, start_stream: StartStream) -> None:
    table_of(database, 10)
    run = start_stream()
    run.catch_up()
    database.execute("UPDATE t SET v = 'new' WHERE id = 1")
    # Not the same end: it is where the log ends, in which the server notes down every few seconds what goes on.
    assert run.offsets[-1] not in (run.ask(), run.ask())
    run.finish()


def test_another_number_of_vnodes_is_for_new_streams(database: Database, start_stream: StartStream) -> None:
    table_of(database, 300)
    run = start_stream(vnodeCount="5")
    run.ask(40)
    run.restart(vnodeCount="9")
    run.batch(40)
    assert run.barrier().progress.vnode_count == 9
    run.restart(vnodeCount="3", numPartitions="1")
    churn(database, 1)
    run.backfill(40)
    assert run.barrier().progress.vnode_count == 9
    run.finish()


def test_a_table_of_one_row(database: Database, start_stream: StartStream) -> None:
    table_of(database, 1)
    run = start_stream()
    run.judged_batch(1)
    run.restart()
    database.execute("UPDATE t SET id = 0; INSERT INTO t VALUES (2, 'two')")
    run.finish()
    assert run.fold.counts == {"insert": 3, "delete": 1}


@pytest.mark.parametrize("size", [1, 20])
def test_batches_that_follow_quickly_take_no_more_changes_than_slow_ones(
    database: Database, start_stream: StartStream, size: int
) -> None:
    table_of(database, 100)
    run = start_stream()
    run.backfill()
    run.catch_up()
    with database.connect(autocommit=True) as writer:
        for at in range(3000 // size):
            writer.execute(f"UPDATE t SET v = 'c{at}' WHERE id <= {size}".encode())
    taken = []
    while run.plan(400):  # the slot moves once in a second, which is once in many of these batches
        rows = run.read()
        taken.append(len(rows))
        run.commit(rows)
    assert len(taken) < 12
    assert max(taken) < 450
    run.finish()


def test_available_now_stops_at_what_was_there_when_it_began(database: Database, start_stream: StartStream) -> None:
    table_of(database, 100)
    run = start_stream()
    for round_ in range(3):
        database.execute(f"UPDATE t SET v = 'before {round_}' WHERE id <= 10")
        run.stream().stop_at_present()
        batches = 0
        while run.batch(30):
            batches += 1
            assert batches < 50
            database.execute(f"UPDATE t SET v = 'during {round_} {batches}' WHERE id > 10")
        values = {row["v"] for key, row in run.fold.rows.items() if key <= (10,)}
        assert values == {f"before {round_}"}
        run.restart()
    assert run.backfilled
    run.finish()


def test_a_query_that_has_stopped_at_present_has_recorded_where_it_stands(
    database: Database, start_stream: StartStream
) -> None:
    """Also where the last of the log is of other tables, and its batches take less than a second each."""
    table_of(database, 5)
    database.execute("CREATE TABLE other (id int)")
    run = start_stream()
    run.catch_up()
    for number in range(5):
        database.execute(f"UPDATE t SET v = '{number}' WHERE id = 1")
    database.execute("INSERT INTO other SELECT generate_series(1, 1000)")
    run.stream().stop_at_present()
    assert run.catch_up(1) > 1
    run.stop()
    with open_store(run.folder / "state") as store:
        assert store.epoch() == run.barrier().epoch.number
