"""Single scenarios of a stream, one moment after the other, on the simulated database."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backfill.advance import Budget
from backfill.control import Control, Request
from backfill.errors import OffsetError, SnapshotGoneError, StateError, TruncateError
from backfill.offset import Barrier, Nothing, from_text, to_text
from backfill.options import OnExistingState, OnTruncate, StartupMode
from backfill.progress import Again, Finished
from backfill.stream import MOST_LOST
from backfill.upsert import Rules
from tests.simulator.conditions import simulated
from tests.simulator.database import TRUNCATION, Change, Database, Key, Row, rank
from tests.simulator.harness import Spark, same_rows
from tests.simulator.sink import Output, output_rows
from tests.simulator.upstream import Server

KEYS: list[Key] = sorted(((a, b) for a in range(5) for b in range(4)), key=rank)
"""Twenty keys in the database's order."""

StartQuery = Callable[..., Spark]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartQuery]:
    """Starts a query on a table with rows under these keys, in one vnode with one reader."""

    def start(
        keys: list[Key], *, vnodes: int = 1, partitions: int = 1, mode: StartupMode = StartupMode.INITIAL
    ) -> Spark:
        database = Database({key: (*key, "at first") for key in keys})
        return Spark(Server(database), tmp_path / "staging", vnodes=vnodes, partitions=partitions, mode=mode)

    with simulated():
        yield start


def row(key: Key, value: str = "new") -> Row:
    return (*key, value)


def insert(spark: Spark, *keys: Key) -> None:
    spark.database.commit([Change(None, row(key)) for key in keys])


def update(spark: Spark, key: Key, value: str = "changed") -> None:
    spark.database.commit([Change(spark.database.latest()[key], row(key, value))])


def delete(spark: Spark, key: Key) -> None:
    spark.database.commit([Change(spark.database.latest()[key], None)])


def move(spark: Spark, old: Key, new: Key) -> None:
    spark.database.commit([Change(spark.database.latest()[old], row(new, "moved"))])


def step(spark: Spark, max_rows: int | None = 2) -> list[tuple[str, Key, str | None]]:
    """One batch: what it emits, in the order of the sequence; nothing where there is none."""
    if not spark.plan(max_rows):
        return []
    rows = spark.read()
    spark.finish(rows)
    spark.check()
    return told(rows)


def told(rows: list[Output]) -> list[tuple[str, Key, str | None]]:
    ordered = sorted(rows, key=lambda row: (row[7], rank(row[:2]) if row[0] is not None else (0, 0)))
    return [(row[3], row[:2], row[2]) for row in ordered]


def snapshot_of(*keys: Key, value: str = "at first") -> list[tuple[str, Key, str]]:
    return [("insert", key, value) for key in keys]


# -- the copy and the changes ------------------------------------------------------------------------------------


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
    assert told([found for found in rows if not found[4]]) == emitted
    spark.finish(rows)
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
    assert spark.finished


def test_a_writer_that_is_faster_than_a_batch_does_not_hold_up_the_snapshot_for_ever(start: StartQuery) -> None:
    spark = start(KEYS)
    for number in range(200):
        for repeated in range(3):
            update(spark, KEYS[0], f"{number} {repeated}") if spark.committed else None
        step(spark, 2)
        if spark.finished:
            return
    pytest.fail("the snapshot does not end")


def test_an_empty_table_is_finished_and_its_first_row_comes_once(start: StartQuery) -> None:
    spark = start([], vnodes=4)
    step(spark)
    assert spark.finished
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
    assert spark.finished
    assert spark.sink.rows == spark.database.latest()


def test_a_finished_backfill_is_told_in_a_few_words(start: StartQuery) -> None:
    spark = start(KEYS, vnodes=5)
    while step(spark, 6):
        pass
    insert(spark, (9, 9))
    step(spark)
    # The keys at which the database cuts without having rows there make some of the vnodes empty.
    assert isinstance(spark.barrier().progress, Finished)
    assert spark.barrier().progress.row_count == 20


# -- Spark's ways ------------------------------------------------------------------------------------------------


def test_the_first_batch_may_be_asked_for_many_times_and_by_many_processes(start: StartQuery) -> None:
    spark = start(KEYS[:4])
    names = set()
    for _ in range(3):
        assert spark.plan(2, logged=False)
        names.add(spark.stream()._record.stream)
        insert(spark, KEYS[10 + len(spark.database.log)])
        spark.crash()
    while step(spark):
        pass
    assert len(names) == 1
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
    before = spark.start
    for _ in range(3):
        assert to_text(spark.stream().latest_offset(before, Budget(10))) == to_text(before)
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
    spark.finish(rows)
    spark.check()


def test_a_chunk_that_was_lost_is_read_again_and_its_changes_are_not_given_twice(start: StartQuery) -> None:
    spark = start(KEYS[:4])
    step(spark)
    spark.plan(2)
    spark.crash()
    update(spark, KEYS[2], "between")
    rows = spark.read()
    assert told(rows) == [("insert", KEYS[2], "between"), ("insert", KEYS[3], "at first")]
    spark.finish(rows)
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
    spark.finish(rows)
    spark.check()


def test_changes_that_an_earlier_chunk_shows_are_left_out_also_by_later_batches(start: StartQuery) -> None:
    spark = start(KEYS[:4])
    spark.plan(4)
    spark.crash()
    for number in range(4):
        update(spark, KEYS[0], f"{number}")
    spark.finish(spark.read())
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
    spark.finish(rows)
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


def test_a_batch_cannot_end_where_nothing_is_read(start: StartQuery) -> None:
    with pytest.raises(OffsetError, match="ends where nothing is read"):
        start([]).stream().parts(Nothing(), Nothing())


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


def test_stopping_at_present_finishes_the_backfill(start: StartQuery) -> None:
    spark = start(KEYS[:9])
    step(spark)
    spark.stream().stop_at_present()
    while step(spark):
        pass
    assert spark.finished
    insert(spark, KEYS[15])
    assert step(spark) == []


# -- held and throttled ------------------------------------------------------------------------------------------


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
    assert spark.stream().report()["control"] == "paused"
    spark.crash()
    assert step(spark) == []
    spark.control = spark.control.resumed()
    assert step(spark) == snapshot_of(*KEYS[2:4])
    while step(spark):
        pass
    assert spark.sink.rows == spark.database.latest()
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


def test_a_snapshot_alone_waits_as_a_whole_and_is_not_throttled(start: StartQuery) -> None:
    spark = start(KEYS[:9], mode=StartupMode.SNAPSHOT)
    spark.control = Control(paused=True, max_rows=1)
    assert not spark.plan()
    spark.control = spark.control.resumed()
    assert step(spark, 3) == snapshot_of(*KEYS[:9])


# -- taken again ---------------------------------------------------------------------------------------------------


def caught_up(spark: Spark) -> Spark:
    while step(spark, None):
        pass
    return spark


def rows_again(*keys: Key, value: str = "at first") -> list[tuple[str, Key, str]]:
    return snapshot_of(*keys, value=value)


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
    assert told(rows) == [("update_postimage", KEYS[0], "before")], "nothing that is later than the batch"
    spark.crash()
    assert same_rows(spark.read(), rows)
    spark.finish(rows)
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
    spark.finish(spark.read())
    spark.plan(None)
    spark.crash()
    shutil.rmtree(spark.folder)
    assert spark.read() == [], "of what it had to read, all is left to another batch"
    spark.finish([])
    assert sorted(step(spark, None)) == sorted(rows_again(*KEYS[:5]))
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
    spark.ask_again(stops=True)
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
    assert caplog.text.count("passed over: a stream with startupMode=snapshot is one batch") == 1


def test_a_stream_that_keeps_later_rows_than_the_table_has_does_not_undo_them(
    start: StartQuery, caplog: pytest.LogCaptureFixture
) -> None:
    spark = start(KEYS[:3])
    spark.rules = Rules(order_column="a")
    caught_up(spark).ask_again()
    assert step(spark) == step(spark) == []
    assert caplog.text.count("passed over: with orderColumn the sink may have a later row") == 1


def test_what_is_no_key_is_passed_over_and_said(start: StartQuery, caplog: pytest.LogCaptureFixture) -> None:
    spark = caught_up(start(KEYS[:3]))
    stream = spark.barrier().stream
    spark.control = Control(requests=(Request("a", stream, ("1", "x"), None), Request("b", stream, None, ("1",))))
    insert(spark, KEYS[9])
    assert step(spark) == [("insert", KEYS[9], "new")]
    assert caplog.text.count("is passed over: a value is not one of the table's key") == 2
    assert spark.barrier().again == Again("b", Finished(0, 0))


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


# -- other beginnings ------------------------------------------------------------------------------------------------


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


def test_a_new_checkpoint_on_a_used_directory_is_refused_until_it_is_said_what_to_do(start: StartQuery) -> None:
    spark = start(KEYS[:9])
    step(spark)
    step(spark)
    spark.begin_anew(OnExistingState.FAIL)
    with pytest.raises(StateError, match="onExistingState=resume"):
        spark.plan(2)


def test_a_new_checkpoint_goes_on_from_the_directory_and_names_where_it_began(start: StartQuery) -> None:
    spark = start(KEYS[:9])
    for _ in range(3):
        step(spark)
    for _ in range(2):
        spark.begin_anew(OnExistingState.RESUME)
        step(spark)
        base = spark.barrier().base
        assert isinstance(base, Barrier)
        assert base.epoch.number == spark.barrier().epoch.number - 1
        assert base.base is None
        step(spark)
        assert spark.barrier().base is None
    while step(spark):
        pass
    assert spark.sink.rows == spark.database.latest()


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


# -- truncations -----------------------------------------------------------------------------------------------------


def test_a_truncation_ends_the_stream_and_says_what_to_set(start: StartQuery) -> None:
    spark = start(KEYS[:2])
    while step(spark):
        pass
    spark.database.commit([TRUNCATION])
    spark.plan()
    with pytest.raises(TruncateError, match=r"onTruncate=emit .* onTruncate=ignore"):
        spark.read()


def test_a_truncation_before_anything_was_emitted_is_no_matter(start: StartQuery) -> None:
    spark = start([], vnodes=1)
    spark.plan(logged=False)
    spark.database.commit([TRUNCATION, Change(None, row(KEYS[0]))])
    assert step(spark) == [("insert", KEYS[0], "new")]


def test_a_truncation_is_emitted_where_that_was_asked_for(start: StartQuery) -> None:
    spark = start(KEYS[:6])
    spark.on_truncate = OnTruncate.EMIT
    step(spark)
    spark.database.commit([TRUNCATION, Change(None, row(KEYS[0])), Change(None, row(KEYS[5]))])
    found = step(spark)
    assert [(kind, value) for kind, _, value in found] == [("truncate", None), ("insert", "new"), ("insert", "new")]


def test_a_truncation_is_passed_over_where_that_was_asked_for(start: StartQuery) -> None:
    spark = start(KEYS[:2])
    spark.on_truncate = OnTruncate.IGNORE
    while step(spark):
        pass
    spark.database.commit([TRUNCATION, Change(None, row(KEYS[9]))])
    spark.plan()
    assert told(spark.read()) == [("insert", KEYS[9], "new")]


# -- the report --------------------------------------------------------------------------------------------------


def test_the_report_tells_how_far_the_stream_is(start: StartQuery) -> None:
    spark = start(KEYS[:4])
    assert spark.stream().report() == {"table": "public.t", "phase": "starting"}
    step(spark)
    assert spark.stream().report() == {
        "table": "public.t",
        "phase": "snapshot",
        "snapshot_rows": 2,
        "vnodes": 1,
        "vnodes_completed": 0,
        "changes_passed_on": 0,
        "changes_held_back": 0,
        "changes_counted_since": "1970-01-01T00:00:01.000+00:00",
        "lag_bytes": 0,
    }
    step(spark)
    done = spark.stream().report()
    assert (done["phase"], done["vnodes_completed"], done["snapshot_rows_left"]) == ("changes", 1, 0)


def test_changes_are_counted_once_each_also_over_a_crash(start: StartQuery) -> None:
    """A moved row is one change, whichever of its halves go forward; a batch that is run again is not counted again."""
    spark = start(KEYS[1:9])
    step(spark)
    update(spark, KEYS[1])
    update(spark, KEYS[7])
    move(spark, KEYS[2], KEYS[0])
    move(spark, KEYS[6], KEYS[19])
    step(spark, 4)
    assert counts(spark) == (2, 2)
    delete(spark, KEYS[0])
    spark.plan(2)
    spark.read()
    assert counts(spark) == (3, 2)
    spark.crash()
    assert len(step(spark)) == 3
    step(spark)
    assert counts(spark) == (3, 2)
    spark.crash()
    spark.kept_counts = None
    delete(spark, KEYS[1])
    while step(spark):
        pass
    assert counts(spark) == (1, 0)


def counts(spark: Spark) -> tuple[object, object]:
    told = spark.stream().report()
    return told["changes_passed_on"], told["changes_held_back"]
