"""Changes alone, the snapshot alone, and new checkpoints on used directories."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill.control import Control
from backfill.errors import OptionsError, StagingError, StateError
from backfill.offset import Barrier, from_text
from backfill.options import OnExistingState, StartupMode
from backfill.whole_rows.completing import Rules
from backfill_state import InMemoryProgressStore
from tests.simulator.harness import Spark
from tests.stream.scenario import KEYS, StartQuery, caught_up, changes_of, insert, snapshot_of, step, update


def test_a_stream_of_changes_alone_reads_no_rows(start: StartQuery) -> None:
    spark = start(KEYS[:4], mode=StartupMode.LATEST)
    assert step(spark) == []
    update(spark, KEYS[1])
    assert step(spark) == [("update_postimage", KEYS[1], "changed")]


def test_a_snapshot_alone_is_one_batch_whatever_the_budget_and_touches_no_log(start: StartQuery) -> None:
    spark = start(KEYS, vnodes=3, mode=StartupMode.SNAPSHOT)
    assert step(spark, 1) == snapshot_of(*KEYS)
    insert(spark, (7, 7))
    assert step(spark) == []
    assert spark.database.slots == {}


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("read", [False, True])
def test_of_a_snapshot_alone_nothing_is_kept_once_it_is_committed(
    start: StartQuery, *, read: bool, paused: bool
) -> None:
    """Neither its state is kept, whether or not the sink read any of it, nor its chunks."""
    spark = start(KEYS, vnodes=3, partitions=2, mode=StartupMode.SNAPSHOT)
    spark.plan()
    parts = spark.parts()
    for part in parts:
        for _ in spark.task(part) if read else ():
            pass
    spark.committed += 1
    spark.control = Control(paused=paused)
    for _ in range(2):
        assert not spark.plan()
        assert not spark.server.pins
        assert not [path for path in spark.folder.rglob("*") if path.is_file()]
        spark.crash()


def test_a_new_checkpoint_on_a_used_directory_is_refused_until_an_option_says_what_to_do(start: StartQuery) -> None:
    spark = start(KEYS[:9])
    step(spark)
    step(spark)
    spark.begin_anew(OnExistingState.FAIL)
    with pytest.raises(StateError, match="onExistingState=resume"):
        spark.plan(2)


def test_who_may_resume_is_told_how_far_the_sink_may_be_beyond_the_record(start: StartQuery) -> None:
    """It may be more than one batch: while only changes are followed, the record is written about once a second."""
    spark = caught_up(start(KEYS[:4]))
    beyond = []
    for number in range(6):
        update(spark, KEYS[1], str(number))
        step(spark)
        beyond.append(spark.barrier().epoch.number - (spark.store.epoch() or 0))
    assert max(beyond) > 1
    spark.begin_anew(OnExistingState.FAIL)
    with pytest.raises(
        StateError, match=r"if the query was killed, .* has one batch more, or, .* those of about a second"
    ):
        spark.plan(2)


def test_a_new_checkpoint_goes_on_from_the_directory_and_names_where_it_began(start: StartQuery) -> None:
    spark = start(KEYS[:9])
    for _ in range(3):
        step(spark)
    for _ in range(2):
        spark.begin_anew(OnExistingState.RESUME)
        step(spark)
        begin = spark.barrier().resumed_from
        assert isinstance(begin, Barrier)
        assert begin.epoch.number == spark.barrier().epoch.number - 1
        assert begin.resumed_from is None
        step(spark)
        assert spark.barrier().resumed_from is None
    while step(spark):
        pass
    assert spark.sink.rows == spark.database.latest()


@pytest.mark.parametrize("mode", list(StartupMode))
@pytest.mark.parametrize("ends", [False, True])
def test_a_new_checkpoint_that_has_nothing_to_read_begins_with_an_empty_batch(
    start: StartQuery, mode: StartupMode, *, ends: bool
) -> None:
    """Spark logs and runs the first batch in any case; after one without an end, the query could never go on."""
    spark = start(KEYS[:4], mode=mode)
    if mode is StartupMode.INITIAL:
        spark.rules = Rules()
    step(spark, None)
    assert step(spark) == []
    before = spark.barrier()
    spark.begin_anew(OnExistingState.RESUME)
    if ends:
        spark.stream().stop_at_present()
    assert spark.plan()
    spark.crash()
    assert spark.read() == []
    spark.commit([])
    assert spark.barrier() == replace(before, resumed_from=replace(before, resumed_from=None))
    if mode is not StartupMode.SNAPSHOT:
        update(spark, KEYS[1])
        assert step(spark)[-1] == ("update_postimage", KEYS[1], "changed")
    assert step(spark) == []


def test_a_directory_that_is_lost_after_an_empty_batch_is_rebuilt(start: StartQuery) -> None:
    spark = caught_up(start(KEYS[:4]))
    spark.begin_anew(OnExistingState.RESUME)
    assert step(spark) == []
    assert spark.committed == 1
    spark.crash()
    spark.store = InMemoryProgressStore()
    assert step(spark) == []
    assert spark.store.epoch() == spark.barrier().epoch.number
    spark.begin_anew(OnExistingState.FAIL)
    with pytest.raises(StateError, match="onExistingState=resume"):
        spark.plan()


def test_a_new_checkpoint_may_start_over_and_the_old_place_in_the_log_is_given_up(start: StartQuery) -> None:
    spark = start(KEYS[:4])
    step(spark)
    step(spark)
    (before,) = spark.database.slots
    spark.begin_anew(OnExistingState.RESTART)
    assert step(spark) == snapshot_of(*KEYS[:2])
    (after,) = spark.database.slots
    assert before != after


def test_a_checkpoint_older_than_the_directory_is_refused(start: StartQuery) -> None:
    spark = start(KEYS[:9])
    for _ in range(3):
        step(spark)
    spark.crash()
    spark.offsets, spark.committed = spark.offsets[:1], 1
    with pytest.raises(StateError, match="an older checkpoint was restored"):
        spark.plan(2)


def test_a_lost_directory_is_made_anew_from_the_checkpoint(start: StartQuery) -> None:
    spark = start(KEYS[:9])
    step(spark)
    step(spark)
    spark.crash()
    spark.store = type(spark.store)()
    while step(spark):
        pass
    assert spark.sink.rows == spark.database.latest()
    offset = from_text(spark.store.offset() or "")
    assert isinstance(offset, Barrier)
    assert offset.epoch.number >= spark.barrier().epoch.number - 1


def unread(spark: Spark) -> Spark:
    """Commits the first batch without running its tasks."""
    spark.rules = Rules()
    spark.plan(None)
    spark.parts()
    spark.committed += 1
    return spark


@pytest.mark.parametrize("lost", [False, True])
def test_what_the_sink_left_unread_is_read_for_the_rows_that_are_kept(start: StartQuery, *, lost: bool) -> None:
    """This holds also where the rows were read at a later state than planned."""
    spark = start(KEYS[:12], vnodes=3, partitions=2)
    if lost:
        spark.plan(None)
        spark.crash()
    unread(spark)
    update(spark, KEYS[0])
    assert spark.plan(None)
    assert changes_of(spark.read()) == [
        ("update_preimage", KEYS[0], "at first"),
        ("update_postimage", KEYS[0], "changed"),
    ]


def test_a_query_that_ended_before_unread_rows_could_be_had_is_an_error(start: StartQuery) -> None:
    spark = unread(start(KEYS[:4], vnodes=2, partitions=2))
    spark.crash()
    insert(spark, KEYS[5])
    assert spark.plan(None)
    with pytest.raises(StagingError, match=r"of its .* chunks were not read, .* did not read the whole batch"):
        spark.parts()


@pytest.mark.parametrize(("began", "now"), [("", "a"), ("a", ""), ("a", "b")])
def test_the_order_of_the_rows_that_are_kept_stays_the_same(start: StartQuery, began: str, now: str) -> None:
    spark = start(KEYS[:4])
    spark.rules = Rules(order_column=began)
    step(spark, None)
    insert(spark, KEYS[8])
    step(spark, None)
    spark.crash()
    spark.rules = Rules(order_column=now)
    expected = rf"began with orderColumn=({began}|\(none\)), and now has orderColumn=({now}|\(none\))"
    with pytest.raises(OptionsError, match=expected):
        spark.plan(None)
    spark.crash()
    spark.rules = Rules(order_column=began)
    insert(spark, KEYS[9])
    assert spark.plan(None)
    spark.crash()
    spark.rules = Rules(order_column=now)
    with pytest.raises(OptionsError, match=expected):
        spark.parts()
    spark.crash()
    spark.rules = Rules(order_column=began)
    assert spark.parts()
