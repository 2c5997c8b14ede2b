"""The copy of the table and the changes to it, one moment after the other."""

from __future__ import annotations

import pytest

from backfill.progress import Finished
from tests.simulator.database import Change, Key
from tests.stream.scenario import KEYS, StartQuery, changes_of, delete, insert, move, row, snapshot_of, step, update


def test_the_worked_example_of_the_package(start: StartQuery) -> None:
    zero, one, two, three, four, nine = KEYS[:6]
    spark = start([one, two, three, four])
    assert step(spark) == snapshot_of(one, two)
    first = spark.database.latest()
    spark.database.commit(
        [
            Change(first[two], row(two, "changed")),
            Change(first[four], row(four, "changed")),
            Change(first[one], None),
            Change(first[three], row(zero, "moved")),
        ]
    )
    assert step(spark) == [
        ("update_postimage", two, "changed"),
        ("delete", one, None),
        ("insert", zero, "moved"),
        ("insert", four, "changed"),
    ]
    insert(spark, nine)
    assert step(spark) == [("insert", nine, "new")]
    assert step(spark) == []


def test_a_row_updated_during_the_copy_is_emitted_once(start: StartQuery) -> None:
    spark = start(KEYS[:4])
    assert step(spark) == snapshot_of(*KEYS[:2])
    update(spark, KEYS[2])
    assert step(spark) == [("insert", KEYS[2], "changed"), ("insert", KEYS[3], "at first")]
    assert step(spark) == []


def test_a_row_inserted_behind_the_position_comes_as_a_change_and_one_ahead_of_it_as_a_snapshot_row(
    start: StartQuery,
) -> None:
    spark = start(KEYS[1:4])
    step(spark)
    insert(spark, KEYS[0], KEYS[5])
    spark.plan(2)
    rows = spark.read()
    assert [(found[:2], found[4]) for found in rows] == [(KEYS[0], False), (KEYS[3], True), (KEYS[5], True)]


@pytest.mark.parametrize(
    ("old", "new", "emitted"),
    [
        (KEYS[1], KEYS[0], [("delete", KEYS[1], None), ("insert", KEYS[0], "moved")]),
        (KEYS[1], KEYS[19], [("delete", KEYS[1], None)]),
        (KEYS[6], KEYS[0], [("insert", KEYS[0], "moved")]),
        (KEYS[6], KEYS[19], []),
    ],
    ids=["behind to behind", "behind to ahead", "ahead to behind", "ahead to ahead"],
)
def test_a_row_that_moves_over_the_position_is_neither_lost_nor_doubled(
    start: StartQuery, old: Key, new: Key, emitted: list[object]
) -> None:
    spark = start(KEYS[1:9])
    step(spark)
    move(spark, old, new)
    spark.plan(2)
    rows = spark.read()
    assert changes_of([found for found in rows if not found[4]]) == emitted
    spark.commit(rows)
    while step(spark):
        pass
    assert spark.sink.rows == spark.database.latest()


def test_changes_of_a_batch_without_snapshot_rows_are_not_given_again_by_the_next(start: StartQuery) -> None:
    spark = start(KEYS[:6])
    step(spark)
    for number in range(4):
        update(spark, KEYS[0], f"{number}")
    first = step(spark, 1)
    assert first == [("update_postimage", KEYS[0], "0")], "the backlog is worked off first"
    found = [change for _ in range(10) for change in step(spark, 1)]
    assert [value for kind, _, value in found if kind == "update_postimage"] == ["1", "2", "3"]
    assert spark.backfilled


def test_a_writer_that_is_faster_than_a_batch_does_not_hold_up_the_snapshot_for_ever(start: StartQuery) -> None:
    spark = start(KEYS)
    for number in range(200):
        for repeated in range(3):
            update(spark, KEYS[0], f"{number} {repeated}") if spark.committed else None
        step(spark, 2)
        if spark.backfilled:
            return
    pytest.fail("the snapshot does not end")


def test_an_empty_table_is_finished_and_its_first_row_comes_once(start: StartQuery) -> None:
    spark = start([], vnodes=4)
    step(spark)
    assert spark.backfilled
    spark.crash()
    insert(spark, KEYS[7])
    assert step(spark) == [("insert", KEYS[7], "new")]
    spark.crash()
    assert step(spark) == []


def test_a_finished_vnode_is_not_read_again_after_a_restart(start: StartQuery) -> None:
    spark = start(KEYS[:10], vnodes=3)
    emitted = []
    while found := step(spark, 3):
        emitted += found
        spark.crash()
    assert sorted(emitted) == sorted(snapshot_of(*KEYS[:10]))


def test_a_row_deleted_before_its_vnode_is_finished_is_deleted_downstream(start: StartQuery) -> None:
    spark = start(KEYS[:6])
    step(spark)
    spark.crash()
    delete(spark, KEYS[0])
    assert step(spark)[0] == ("delete", KEYS[0], None)


def test_the_number_of_readers_may_differ_in_every_batch(start: StartQuery) -> None:
    spark = start(KEYS, vnodes=5)
    for partitions in (1, 5, 2, 7, 1, 3):
        spark.partitions = partitions
        spark.crash()
        step(spark, 6)
    assert spark.backfilled
    assert spark.sink.rows == spark.database.latest()


def test_a_finished_backfill_is_reported_in_a_few_words(start: StartQuery) -> None:
    spark = start(KEYS, vnodes=5)
    while step(spark, 6):
        pass
    insert(spark, (9, 9))
    step(spark)
    # The keys at which the database cuts without having rows there make some of the vnodes empty.
    assert isinstance(spark.barrier().progress, Finished)
    assert spark.barrier().progress.row_count == 20
