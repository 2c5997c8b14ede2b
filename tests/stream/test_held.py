"""A stream that is held or throttled by a person."""

from __future__ import annotations

import pytest

from backfill.control import Control
from backfill.offset import InitialOffset
from backfill.options import StartupMode
from backfill.whole_rows.completing import Rules
from tests.simulator.database import Change
from tests.stream.scenario import KEYS, StartQuery, caught_up, delete, insert, move, row, snapshot_of, step, update


def test_while_it_is_paused_changes_flow_and_the_snapshot_stands_still(start: StartQuery) -> None:
    spark = start(KEYS[:6])
    step(spark)
    spark.control = Control(paused=True)
    assert step(spark) == []
    update(spark, KEYS[0])
    move(spark, KEYS[4], KEYS[9])
    assert step(spark) == [("update_postimage", KEYS[0], "changed")]
    delete(spark, KEYS[1])
    assert step(spark) == [("delete", KEYS[1], None)]
    assert step(spark) == []
    figures = spark.stream().report()
    assert (figures["control"], figures["control_rows"]) == ("paused", 0)
    spark.crash()
    assert step(spark) == []
    spark.control = spark.control.resumed()
    assert step(spark) == snapshot_of(*KEYS[2:4])
    while step(spark):
        pass
    assert spark.sink.rows == spark.database.latest()
    assert "control" not in spark.stream().report()


def test_a_pause_is_shown_after_the_backfill_too_while_rows_wait_to_be_read_again(start: StartQuery) -> None:
    spark = caught_up(start(KEYS[:3]))
    spark.control = Control(paused=True)
    assert step(spark) == []
    assert "control" not in spark.stream().report()
    spark.ask_again()
    assert step(spark) == []
    figures = spark.stream().report()
    assert (figures["phase"], figures["control"], figures["control_rows"]) == ("changes", "paused", 0)
    spark.control = spark.control.resumed()
    while step(spark):
        pass
    assert "control" not in spark.stream().report()


def test_paused_before_it_begins_it_reads_nothing_and_begins_where_it_is(start: StartQuery) -> None:
    spark = start(KEYS[:3])
    spark.control = Control(max_rows=0)
    assert step(spark) == []
    assert spark.committed == 1
    insert(spark, KEYS[5])
    assert step(spark) == []
    assert not spark.plan()
    spark.control = Control()
    assert step(spark, None) == [*snapshot_of(*KEYS[:3]), ("insert", KEYS[5], "new")]


@pytest.mark.parametrize("budget", [5, None])
def test_a_throttled_stream_reads_so_many_rows_a_batch_and_all_changes(start: StartQuery, budget: int | None) -> None:
    spark = start(KEYS[:7])
    spark.control = Control(max_rows=2)
    assert step(spark, budget) == snapshot_of(*KEYS[:2])
    assert spark.stream().report()["control_rows"] == 2
    spark.database.commit([Change(spark.database.latest()[key], row(key, "changed")) for key in KEYS[:2]])
    assert len(step(spark, budget)) == 4
    spark.control = spark.control.throttled(None)
    assert step(spark, budget) == snapshot_of(*KEYS[4:7])


def test_a_paused_stream_that_is_to_stop_at_present_does_so(start: StartQuery) -> None:
    spark = start(KEYS[:5])
    step(spark)
    spark.control = Control(paused=True)
    update(spark, KEYS[0])
    spark.stream().stop_at_present()
    assert len(step(spark)) == 1
    update(spark, KEYS[0], "again")
    assert not spark.plan()
    assert spark.barrier().progress.row_count == 2


def test_a_snapshot_alone_is_not_held_up_by_what_the_stream_before_it_was_told(start: StartQuery) -> None:
    """If its one batch were held, a query with availableNow would end without a row and without an error."""
    spark = start(KEYS[:9], mode=StartupMode.SNAPSHOT)
    spark.control = Control(paused=True, max_rows=0)
    assert step(spark, 3) == snapshot_of(*KEYS[:9])
    assert "control" not in spark.stream().report()
    assert spark.stream().parts(InitialOffset(), InitialOffset()) == ()  # logged by an earlier version


def test_a_state_that_rows_were_looked_up_at_is_let_go(start: StartQuery) -> None:
    """No reader needs it, and the next batch may be an hour away."""
    spark = start(KEYS[:6])
    spark.rules, spark.server.leaves_out = Rules(), True
    step(spark)
    spark.control = Control(paused=True)
    delete(spark, KEYS[0])
    spark.database.commit([Change(row(KEYS[5], "at first"), row(KEYS[0], "at first"))])
    assert spark.plan(None)
    spark.parts()
    assert spark.server.looked_up
    assert spark.server.pins == {}
