"""stagingDir that another run did not have, or that was emptied, or that another query has planned a batch in."""

from __future__ import annotations

import shutil
from typing import NoReturn

import pytest

from backfill.errors import ConnectionLostError, SchemaChangedError, StagingError, StateError
from backfill.options import OnExistingState
from backfill.whole_rows.completing import Rules
from tests.simulator.harness import Spark
from tests.simulator.upstream import SimulatedUpstream
from tests.stream.scenario import KEYS, StartQuery, caught_up, snapshot_of, step, update

ANOTHER_PLAN = r"stagingDir .* holds another plan of the batch up to epoch \d+ than the checkpoint"
NOT_THERE = r"stagingDir .* does not have the files of the batch up to epoch \d+"


def _no_connection(*_: object) -> NoReturn:
    raise ConnectionLostError("no connection")


def _another_order(*_: object) -> NoReturn:
    raise SchemaChangedError("another order")


def emptied(spark: Spark) -> None:
    spark.crash()
    shutil.rmtree(spark.folder)


def test_it_has_to_be_there_while_rows_are_left(start: StartQuery) -> None:
    spark = start(KEYS[:6])
    step(spark)
    emptied(spark)
    with pytest.raises(StagingError, match=NOT_THERE):
        step(spark)


def test_it_has_to_be_there_for_a_batch_that_the_sink_may_have(start: StartQuery) -> None:
    """Otherwise its rows would be read as they are by then, and changes held back that the sink does not have."""
    spark = start(KEYS[:6])
    step(spark)
    spark.plan(2)
    spark.sink.apply(spark.read())
    emptied(spark)
    update(spark, KEYS[2])
    with pytest.raises(StagingError, match=NOT_THERE):
        spark.read()


def test_it_has_to_be_there_for_the_first_batch(start: StartQuery) -> None:
    spark = start(KEYS[:6])
    spark.plan(2)
    emptied(spark)
    with pytest.raises(StagingError, match=NOT_THERE):
        spark.read()


def test_a_chunk_that_was_read_later_is_not_forgotten_with_it(start: StartQuery) -> None:
    spark = start(KEYS[:6])
    spark.plan(2)
    spark.crash()
    update(spark, KEYS[0])
    spark.commit(spark.read())
    emptied(spark)
    with pytest.raises(StagingError, match=NOT_THERE):
        step(spark)


def test_a_batch_that_only_worked_off_changes_is_known_to_have_read_no_rows(start: StartQuery) -> None:
    spark = start(KEYS[:6])
    step(spark)
    for _ in range(3):
        update(spark, KEYS[0])
    assert step(spark) == [("update_postimage", KEYS[0], "changed")] * 2
    spark.crash()
    assert ("insert", KEYS[5], "at first") in step(spark, None)


def test_it_is_not_asked_for_once_no_rows_are_left(start: StartQuery) -> None:
    spark = caught_up(start(KEYS[:6]))
    update(spark, KEYS[0])
    step(spark)
    emptied(spark)
    update(spark, KEYS[1])
    assert step(spark) == [("update_postimage", KEYS[1], "changed")]


def test_where_the_state_directory_was_lost_with_it_the_checkpoint_is_enough(start: StartQuery) -> None:
    spark = start(KEYS[:6])
    found = step(spark)
    emptied(spark)
    spark.store.reset()
    spark.plan(2)
    spark.crash()
    assert spark.offsets.pop(), "Spark did not log it"
    while rows := step(spark):
        found += rows
    assert sorted(found) == sorted(snapshot_of(*KEYS[:6]))


@pytest.mark.parametrize("logged", [False, True])
def test_where_the_last_rows_were_lost_with_both_only_a_start_without_them_goes_on(
    start: StartQuery, *, logged: bool
) -> None:
    """Each start with them fails again."""
    spark = start(KEYS[:6])
    spark.rules = Rules()
    found = step(spark)
    if logged:
        spark.plan(2)
    emptied(spark)
    spark.store.reset()
    spark.states.clear()
    for _ in range(2):
        with pytest.raises(StateError, match=r"but there is none.*leave out changelog and envelope"):
            (spark.read if logged else spark.plan)()
        spark.crash()
    spark.rules = None
    while rows := step(spark):
        found += rows
    assert sorted(found) == sorted(snapshot_of(*KEYS[:6]))


def test_where_both_were_lost_a_logged_batch_may_fail_at_first(
    start: StartQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the second try there is a state directory again."""
    spark = start(KEYS[:6])
    step(spark)
    spark.plan(2)
    emptied(spark)
    spark.store.reset()
    with monkeypatch.context() as patched:
        patched.setattr(SimulatedUpstream, "changes", _no_connection)
        with pytest.raises(ConnectionLostError):
            spark.read()
    spark.crash()
    caught_up(spark)
    assert spark.sink.rows == spark.database.latest()


def test_rows_left_unread_are_not_read_at_the_state_of_the_batch_after(start: StartQuery) -> None:
    """The session that held their state was lost, and Spark did not log the batch that was planned next."""
    spark = start(KEYS[:12], vnodes=3, partitions=2)
    spark.rules = Rules()
    spark.plan(4)
    spark.parts()
    spark.committed += 1
    spark.server.pins = None
    update(spark, KEYS[0])
    spark.plan(4, logged=False)
    spark.plan(4)
    with pytest.raises(StagingError, match="chunks were not read"):
        spark.read()


def test_the_order_of_keys_matters_still_after_the_last_rows_were_read_later(
    start: StartQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next batch leaves out changes to a range of keys that were read later."""
    spark = start(KEYS[:6])
    spark.plan(None)
    spark.crash()
    update(spark, KEYS[0])
    spark.commit(spark.read())
    assert not spark.barrier().order_matters
    spark.crash()
    monkeypatch.setattr(SimulatedUpstream, "require_same_order", _another_order)
    with pytest.raises(SchemaChangedError, match="another order"):
        step(spark, None)


def another_goes_on(spark: Spark, rows: int) -> None:
    """Has another query plan and read the batch from the record, with a checkpoint of its own, and give it up."""
    before = spark.offsets, spark.committed, spark.sink
    spark.begin_anew(OnExistingState.RESUME)
    spark.plan(rows)
    spark.read()
    spark.crash()
    spark.offsets, spark.committed, spark.sink = before


@pytest.mark.parametrize(
    ("rows", "changed"), [(1, False), (3, False), (2, True)], ids=["fewer rows", "more rows", "another state"]
)
def test_a_batch_that_was_logged_is_not_read_as_another_query_has_planned_it(
    start: StartQuery, rows: int, *, changed: bool
) -> None:
    """Otherwise the sink would lack rows, or get changes that its rows show already."""
    spark = start(KEYS[:6])
    step(spark)
    spark.plan(2)
    if changed:
        update(spark, KEYS[5])
    another_goes_on(spark, rows)
    with pytest.raises(StagingError, match=ANOTHER_PLAN):
        spark.read()


def test_a_batch_that_another_query_has_planned_alike_is_read(start: StartQuery) -> None:
    spark = start(KEYS[:6])
    step(spark)
    spark.plan(2)
    another_goes_on(spark, 2)
    assert step(spark)
    caught_up(spark)


def test_a_chunk_that_was_read_later_is_not_forgotten_where_another_query_has_planned_its_batch(
    start: StartQuery,
) -> None:
    spark = start(KEYS[:6])
    step(spark)
    spark.plan(2)
    spark.crash()
    update(spark, KEYS[2])
    spark.commit(spark.read())
    another_goes_on(spark, 2)
    with pytest.raises(StagingError, match=ANOTHER_PLAN):
        step(spark)
