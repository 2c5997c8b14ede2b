"""Rows that a person has asked for once more."""

from __future__ import annotations

import shutil

import pytest

from backfill.control import Control, ReadAgain
from backfill.options import StartupMode
from backfill.progress import Again, Finished
from backfill.whole_rows.completing import Rules
from tests.simulator.database import Change
from tests.simulator.harness import same_rows
from tests.stream.scenario import (
    KEYS,
    StartQuery,
    caught_up,
    changes_of,
    delete,
    insert,
    row,
    rows_again,
    snapshot_of,
    step,
    update,
)


def test_rows_are_taken_again_as_of_their_batch_and_after_its_changes(start: StartQuery) -> None:
    spark = caught_up(start(KEYS[:6]))
    insert(spark, KEYS[8])
    assert step(spark) == [("insert", KEYS[8], "new")]
    spark.ask_again(KEYS[1], KEYS[3])
    update(spark, KEYS[1])
    delete(spark, KEYS[5])
    assert step(spark) == [
        ("update_postimage", KEYS[1], "changed"),
        ("delete", KEYS[5], None),
        *[("insert", KEYS[1], "changed"), ("insert", KEYS[2], "at first")],
    ]
    assert (
        spark.stream().report().items()
        >= {
            "phase": "again",
            "snapshot_rows": 6,
            "vnodes": 1,
            "vnodes_completed": 1,
            "again_rows": 2,
            "again_vnodes": 1,
            "again_vnodes_completed": 0,
        }.items()
    )
    delete(spark, KEYS[2])
    update(spark, KEYS[3])
    assert step(spark) == [
        ("delete", KEYS[2], None),
        ("update_postimage", KEYS[3], "changed"),
        ("insert", KEYS[3], "changed"),
    ]
    assert (spark.done, spark.stream().report()["phase"]) == (1, "changes")
    for _ in range(2):
        assert step(spark) == []
        spark.crash()
    insert(spark, KEYS[2])
    assert step(spark) == [("insert", KEYS[2], "new")]


def test_a_chunk_that_was_lost_while_rows_were_taken_again_comes_in_another_batch(start: StartQuery) -> None:
    spark = caught_up(start(KEYS[:6]))
    spark.ask_again()
    update(spark, KEYS[0], "before")
    spark.plan(2)
    spark.crash()
    update(spark, KEYS[0], "between")
    delete(spark, KEYS[1])
    insert(spark, KEYS[1])
    delete(spark, KEYS[2])
    rows = spark.read()
    assert changes_of(rows) == [("update_postimage", KEYS[0], "before")], "nothing that is later than the batch"
    spark.crash()
    assert same_rows(spark.read(), rows)
    spark.commit(rows)
    spark.check()
    found = step(spark, None)
    assert found[:4] == [
        ("update_postimage", KEYS[0], "between"),
        ("delete", KEYS[1], None),
        ("insert", KEYS[1], "new"),
        ("delete", KEYS[2], None),
    ]
    assert sorted(key for _, key, _ in found[4:]) == sorted([KEYS[0], KEYS[1], *KEYS[3:6]])
    assert step(spark) == []
    assert spark.done == 1


def test_the_offsets_alone_are_enough_to_go_on_taking_rows_again(start: StartQuery) -> None:
    spark = caught_up(start(KEYS[:6], vnodes=3))
    spark.ask_again(KEYS[0], KEYS[4])
    spark.plan(2)
    spark.crash()
    shutil.rmtree(spark.folder)
    spark.store.reset()
    first = spark.read()
    assert len(first) == 2, "the state is still the one planned"
    spark.commit(first)
    spark.plan(None)
    spark.crash()
    shutil.rmtree(spark.folder)
    spark.store.reset()
    insert(spark, KEYS[8])
    assert spark.read() == [], "of what it had to read, all is left to another batch"
    spark.commit([])
    found = [*changes_of(first), *step(spark, None)]
    assert sorted(found) == sorted([*rows_again(*KEYS[:5]), ("insert", KEYS[8], "new")])
    assert spark.done == 1


def test_rows_that_are_taken_again_are_read_after_a_crash_if_the_state_is_still_the_one_planned(
    start: StartQuery,
) -> None:
    spark = caught_up(start(KEYS[:6]))
    spark.ask_again()
    spark.plan(None)
    spark.crash()
    rows = spark.read()
    assert sorted(changes_of(rows)) == sorted(rows_again(*KEYS[:6]))
    spark.commit(rows)
    assert step(spark, None) == []
    assert spark.done == 1


def test_requests_are_carried_out_one_by_one_each_of_them_once(start: StartQuery) -> None:
    spark = caught_up(start(KEYS[:6]))
    spark.ask_again(KEYS[3], KEYS[3])
    spark.ask_again(None, KEYS[1])
    spark.ask_again(KEYS[11], KEYS[15])
    found = []
    while some := step(spark, 1):
        found += some
        spark.crash()
    assert found == rows_again(KEYS[3], *KEYS[:2])
    assert step(spark) == []
    assert spark.done == 3
    spark.ask_again(KEYS[3], KEYS[3])
    assert step(spark) == rows_again(KEYS[3])
    assert len(spark.control.requests) == 2, "those that are done are forgotten, save the last"


def test_a_stop_ends_what_is_under_way_and_what_waits(start: StartQuery) -> None:
    spark = caught_up(start(KEYS[:6]))
    spark.ask_again()
    spark.ask_again()
    assert step(spark) == rows_again(*KEYS[:2])
    spark.ask_to_stop()
    assert step(spark) == []
    assert spark.stream().report()["phase"] == "changes"
    spark.ask_again(KEYS[5])
    assert step(spark) == rows_again(KEYS[5])


def test_what_was_asked_for_waits_for_the_first_backfill_and_while_the_stream_is_held(start: StartQuery) -> None:
    spark = start(KEYS[:4])
    step(spark)
    spark.ask_again(KEYS[0], KEYS[0])
    assert step(spark, 5) == snapshot_of(*KEYS[2:4])
    spark.control = spark.control.paused_too()
    insert(spark, KEYS[7])
    assert step(spark) == [("insert", KEYS[7], "new")]
    assert step(spark) == []
    spark.control = spark.control.resumed()
    assert step(spark) == rows_again(KEYS[0])
    assert step(spark) == []


def test_held_in_the_middle_of_it_changes_flow_and_it_goes_on(start: StartQuery) -> None:
    spark = caught_up(start(KEYS[:6]))
    spark.ask_again()
    assert step(spark) == rows_again(*KEYS[:2])
    spark.control = spark.control.throttled(0)
    update(spark, KEYS[3])
    assert step(spark) == [("update_postimage", KEYS[3], "changed")]
    assert step(spark) == []
    assert spark.stream().report()["control"] == "throttled to 0 rows a batch"
    spark.control = spark.control.throttled(1)
    assert step(spark) == rows_again(KEYS[2])
    assert step(spark) == rows_again(KEYS[3], value="changed")


def test_stopping_at_present_finishes_what_was_asked_for(start: StartQuery) -> None:
    spark = caught_up(start(KEYS[:5]))
    spark.ask_again()
    spark.stream().stop_at_present()
    found = [change for _ in range(4) for change in step(spark)]
    assert found == rows_again(*KEYS[:5])
    insert(spark, KEYS[15])
    assert step(spark) == []


def test_a_stream_of_changes_alone_may_have_the_table_later(start: StartQuery) -> None:
    spark = start(KEYS[:5], mode=StartupMode.LATEST)
    assert step(spark) == []
    update(spark, KEYS[1])
    assert len(step(spark)) == 1
    spark.ask_again()
    assert step(spark, None) == [*rows_again(KEYS[0]), ("insert", KEYS[1], "changed"), *rows_again(*KEYS[2:5])]


def test_a_snapshot_alone_is_one_batch_and_says_that_it_does_no_more(
    start: StartQuery, caplog: pytest.LogCaptureFixture
) -> None:
    spark = start(KEYS[:3], mode=StartupMode.SNAPSHOT)
    step(spark, None)
    spark.ask_again()
    assert step(spark) == step(spark) == []
    assert caplog.text.count("refused: a stream with startupMode=snapshot is one batch") == 1


def test_a_stream_that_keeps_later_rows_than_the_table_has_does_not_undo_them(
    start: StartQuery, caplog: pytest.LogCaptureFixture
) -> None:
    spark = start(KEYS[:3])
    spark.rules = Rules(order_column="a")
    caught_up(spark).ask_again()
    assert step(spark) == step(spark) == []
    assert caplog.text.count("refused: with orderColumn the sink may have a later row") == 1


def test_requests_for_what_is_no_key_are_refused_and_logged_once_each(
    start: StartQuery, caplog: pytest.LogCaptureFixture
) -> None:
    spark = caught_up(start(KEYS[:3]))
    stream = spark.barrier().stream
    spark.control = Control(requests=(ReadAgain("a", stream, ("1", "x")), ReadAgain("b", stream, None, ("1",))))
    assert step(spark) == []
    assert spark.barrier().again == Again("b", Finished(0, 0)), "whoever asked is told, though nothing has happened"
    answered = spark.barrier()
    assert step(spark) == []
    assert spark.barrier() == answered
    insert(spark, KEYS[9])
    assert step(spark) == [("insert", KEYS[9], "new")]
    assert caplog.text.count("was refused: a value does not fit the table's key") == 2


def test_rows_are_not_read_before_they_show_a_commit_that_was_passed_on(start: StartQuery) -> None:
    spark = caught_up(start(KEYS[:2]))
    hidden = spark.database.commit([Change(row(KEYS[0], "at first"), row(KEYS[0], "hidden"))], visible=False)
    assert step(spark) == [("update_postimage", KEYS[0], "hidden")]
    spark.ask_again()
    assert step(spark) == []
    insert(spark, KEYS[9])
    assert step(spark) == [("insert", KEYS[9], "new")]
    spark.control = spark.control.paused_too()
    insert(spark, KEYS[8])
    assert step(spark) == [("insert", KEYS[8], "new")]
    spark.control = spark.control.resumed()
    spark.database.reveal(hidden)
    assert step(spark, None)[:2] == [("insert", KEYS[0], "hidden"), ("insert", KEYS[1], "at first")]
