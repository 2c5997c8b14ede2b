"""What Spark does besides asking for one batch after the other: repeat, give up, lose, stop."""

from __future__ import annotations

import pytest

from backfill.errors import SnapshotGoneError
from backfill.offset import to_text
from backfill.stream import MOST_LOST
from tests.simulator.harness import same_rows
from tests.simulator.sink import output_rows
from tests.stream.scenario import KEYS, StartQuery, caught_up, changes_of, delete, insert, snapshot_of, step, update


def test_the_first_batch_may_be_asked_for_many_times_and_by_many_processes(start: StartQuery) -> None:
    spark = start(KEYS[:4])
    found = []
    for _ in range(3):
        assert spark.plan(2, logged=False)
        found.append(spark.store.identity())
        insert(spark, KEYS[10 + len(spark.database.log)])
        spark.crash()
    while step(spark):
        pass
    assert found == [found[0]] * 3
    assert spark.sink.rows == spark.database.latest()


def test_a_batch_that_was_planned_but_not_logged_leaves_nothing_behind(start: StartQuery) -> None:
    spark = start(KEYS[:8])
    step(spark)
    spark.plan(2, logged=False)
    spark.crash()
    for number in range(3):
        update(spark, KEYS[0], f"{number}")
    assert step(spark, 1) == [("update_postimage", KEYS[0], "0")]


def test_nothing_new_is_the_same_text_again(start: StartQuery) -> None:
    spark = start(KEYS[:2])
    while step(spark):
        pass
    before = spark.offset(spark.committed)
    for _ in range(3):
        assert to_text(spark.stream().latest_offset(before, 10)) == to_text(before)
        spark.crash()


def test_a_batch_is_the_same_again_although_its_rows_have_changed(start: StartQuery) -> None:
    spark = start(KEYS[:8])
    step(spark)
    update(spark, KEYS[0])
    spark.plan(3)
    rows = spark.read()
    for key in KEYS[:8]:
        delete(spark, key)
    spark.crash()
    assert same_rows(spark.read(), rows)
    spark.commit(rows)
    spark.check()


def test_a_chunk_that_was_lost_is_read_again_and_its_changes_are_not_given_twice(start: StartQuery) -> None:
    spark = start(KEYS[:4])
    step(spark)
    spark.plan(2)
    spark.crash()
    update(spark, KEYS[2], "between")
    rows = spark.read()
    assert changes_of(rows) == [("insert", KEYS[2], "between"), ("insert", KEYS[3], "at first")]
    spark.commit(rows)
    spark.check()
    update(spark, KEYS[2], "after")
    assert step(spark) == [("update_postimage", KEYS[2], "after")]


def test_of_a_batch_that_was_cut_off_only_the_lost_chunk_is_read_again(start: StartQuery) -> None:
    spark = start(KEYS[:12], vnodes=3, partitions=2)
    spark.plan(None)
    staged, _ = spark.parts()
    done = output_rows(spark.task(staged), spark.stream().rows.schema)
    spark.crash()
    for key in KEYS[:12]:
        update(spark, key)
    rows = spark.read()
    assert {row[2] for row in rows if row in done} == {"at first"}
    assert {row[2] for row in rows if row not in done} == {"changed"}
    assert len(rows) == 12
    spark.commit(rows)
    spark.check()


def test_changes_that_an_earlier_chunk_shows_are_left_out_also_by_later_batches(start: StartQuery) -> None:
    spark = start(KEYS[:4])
    spark.plan(4)
    spark.crash()
    for number in range(4):
        update(spark, KEYS[0], f"{number}")
    spark.commit(spark.read())
    insert(spark, KEYS[9])
    found = [change for _ in range(8) for change in step(spark, 1)]
    assert found == [("insert", KEYS[9], "new")]


def test_nothing_is_acknowledged_before_spark_has_committed_it(start: StartQuery) -> None:
    spark = start(KEYS[:2])
    while step(spark):
        pass
    insert(spark, KEYS[5])
    spark.plan()
    (before,) = spark.database.slots.values()
    rows = spark.read()
    assert list(spark.database.slots.values()) == [before]
    spark.commit(rows)
    insert(spark, KEYS[6])
    spark._clock += 10
    spark.plan()
    (after,) = spark.database.slots.values()
    assert after > before


def test_the_state_is_let_go_as_soon_as_every_chunk_is_staged_and_not_before(start: StartQuery) -> None:
    spark = start(KEYS[:12], vnodes=3, partitions=2)
    spark.plan(None)
    parts = spark.parts()
    assert len(parts) == 2
    for number, part in enumerate(parts):
        spark.watched.pass_time()
        assert spark.server.pins, f"gone before task {number}"
        for _ in spark.task(part):
            pass
    spark.watched.pass_time()
    assert not spark.server.pins


def test_a_state_that_no_task_needs_is_let_go_at_once(start: StartQuery) -> None:
    spark = start([])
    spark.plan()
    assert spark.server.pins
    assert spark.parts() == ()
    assert not spark.server.pins


def test_a_state_that_is_lost_while_the_batch_is_planned_is_taken_again_a_few_times(start: StartQuery) -> None:
    spark = start(KEYS[:4])
    spark.server.losses = MOST_LOST - 1
    assert step(spark) == snapshot_of(*KEYS[:2])
    spark.server.losses = MOST_LOST
    with pytest.raises(SnapshotGoneError):
        spark.plan(2)


def test_stopping_at_present_ends_with_what_is_there_now(start: StartQuery) -> None:
    spark = start(KEYS[:2])
    while step(spark):
        pass
    for key in KEYS[3:6]:
        insert(spark, key)
    spark.stream().stop_at_present()
    insert(spark, KEYS[7])
    found = [change for _ in range(6) for change in step(spark, 1)]
    assert found == snapshot_of(*KEYS[3:6], value="new")


def test_stopping_at_present_lets_the_log_go_at_the_end(start: StartQuery) -> None:
    spark = start(KEYS[:2])
    for number in range(3):
        insert(spark, KEYS[3 + number])
        spark.crash()
        spark.stream().stop_at_present()
        caught_up(spark)
        assert set(spark.database.slots.values()) == {spark.database.lsn}


def test_stopping_at_present_finishes_the_backfill(start: StartQuery) -> None:
    spark = start(KEYS[:9])
    step(spark)
    spark.stream().stop_at_present()
    while step(spark):
        pass
    assert spark.backfilled
    insert(spark, KEYS[15])
    assert step(spark) == []
