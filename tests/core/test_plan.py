"""Planning against a table of numbers: how far each vnode goes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from backfill.plan import MAX_REQUESTS, Limits, pieces
from backfill.progress import Completed, Finished, InProgress, NotStarted, settled
from backfill.vnode import KeyRange
from tests.core.numbered import Table, cuts, emitted, key, limits, numbers, start


@given(numbers, cuts, limits)
def test_a_batch_never_takes_more_rows_than_its_budget(rows: list[int], bounds: list[int], limits: Limits) -> None:
    table, frontier = Table(rows), start(bounds)
    while frontier.unfinished:
        moved = table.plan(frontier, limits)
        assert moved.row_count - frontier.row_count <= limits.max_rows
        frontier = moved


@given(numbers, cuts, limits)
def test_row_counts_are_those_of_the_rows_that_were_emitted(rows: list[int], bounds: list[int], limits: Limits) -> None:
    table, frontier = Table(rows), start(bounds)
    while frontier.unfinished:
        frontier = table.plan(frontier, limits)
        assert frontier.row_count == len(emitted(table, frontier))
        for vnode in frontier.unfinished:
            if isinstance(vnode.progress, InProgress):
                whole = table.within(KeyRange(vnode.range.after, vnode.progress.current_pos))
                assert vnode.progress.row_count == len(whole)
    assert emitted(table, frontier) == rows


@given(numbers, cuts, limits)
def test_every_batch_gets_on_until_all_vnodes_are_completed(rows: list[int], bounds: list[int], limits: Limits) -> None:
    table, frontier = Table(rows), start(bounds)
    batches = 0
    while frontier.unfinished:
        moved = table.plan(frontier, limits)
        assert moved != frontier
        frontier, batches = moved, batches + 1
    assert settled(frontier) == Finished(len(bounds) + 1, len(rows))
    # Each batch empties its budget, or its lanes, or the table.
    assert batches <= len(rows) + len(bounds) + 1


@given(numbers, cuts, limits)
def test_no_vnode_takes_more_than_its_lanes_share(rows: list[int], bounds: list[int], limits: Limits) -> None:
    frontier = start(bounds)
    moved = Table(rows).plan(frontier, limits)
    vnodes = len(frontier.unfinished[: limits.max_vnodes])
    share = -(-limits.max_rows // min(limits.lanes, vnodes))
    assert all(piece.row_count <= share for piece in pieces(frontier, moved))


@given(numbers, cuts, limits)
def test_each_vnode_goes_to_a_row_that_is_there_or_to_its_end(
    rows: list[int], bounds: list[int], limits: Limits
) -> None:
    moved = Table(rows).plan(start(bounds), limits)
    for vnode in moved.unfinished:
        if isinstance(vnode.progress, InProgress):
            assert int(vnode.progress.current_pos[0]) in rows


@given(numbers, cuts, limits, st.data())
def test_vnodes_finish_also_while_the_table_changes(
    rows: list[int], bounds: list[int], limits: Limits, data: st.DataObject
) -> None:
    table, frontier = Table(rows), start(bounds)
    for _ in range(30):
        frontier = table.plan(frontier, limits)
        table.rows = data.draw(numbers)
    for _ in range(len(table.rows) + len(bounds) + 1):
        frontier = table.plan(frontier, limits)
    assert not frontier.unfinished


def test_as_many_vnodes_are_under_way_as_there_are_lanes() -> None:
    table = Table(list(range(100)))
    moved = table.plan(start([19, 39, 59, 79]), Limits(max_rows=30, lanes=3, vnode_rows=20))
    assert [number for number, progress in moved.per_vnode() if progress == InProgress(key(20 * number + 9), 10)] == [
        *(0, 1, 4)
    ]


def test_fewer_vnodes_than_lanes_use_up_the_budget_all_the_same() -> None:
    table = Table(list(range(100)))
    moved = table.plan(start([19, 39, 59, 79]), Limits(max_rows=50, lanes=100, vnode_rows=20))
    assert [progress for _, progress in moved.per_vnode()] == [
        InProgress(key(20 * number + 9), 10) for number in range(5)
    ]


def test_a_budget_that_the_lanes_do_not_divide_starts_no_further_vnode_for_the_remainder() -> None:
    table = Table(list(range(100)))
    moved = table.plan(start([19, 39, 59, 79]), Limits(max_rows=10, lanes=3, vnode_rows=20))
    rows = {number: at.row_count for number, at in moved.per_vnode() if isinstance(at, InProgress)}
    assert rows == {4: 4, 0: 4, 1: 2}


def test_no_more_vnodes_are_looked_at_than_may_be() -> None:
    table = Table([])
    moved = table.plan(start([19, 39, 59, 79]), Limits(max_rows=100, lanes=1, vnode_rows=1, max_vnodes=2))
    assert sum(len(requests) for requests in table.asked) == 2
    assert sum(isinstance(progress, Completed) for _, progress in moved.per_vnode()) == 2


def test_a_vnode_that_was_measured_when_the_budget_was_used_up_stays_where_it_is() -> None:
    table = Table(list(range(100)))
    moved = table.plan(start([19, 39, 59, 79]), Limits(max_rows=10, lanes=1, vnode_rows=5))
    assert [len(requests) for requests in table.asked] == [2]
    assert [number for number, progress in moved.per_vnode() if progress != NotStarted()] == [4]


def test_vnodes_under_way_go_first_then_the_last_one_then_the_others_in_order() -> None:
    table = Table(list(range(100)))
    frontier = start([19, 39, 59, 79]).advanced({2: InProgress(key(45), 6)})
    table.plan(frontier, Limits(max_rows=1000, lanes=1, vnode_rows=1))
    asked = [request.range for requests in table.asked for request in requests]
    assert asked == [
        KeyRange(key(45), key(59)),
        KeyRange(key(79), None),
        KeyRange(None, key(19)),
        KeyRange(key(19), key(39)),
        KeyRange(key(59), key(79)),
    ]


def test_a_table_that_grows_at_its_end_faster_than_it_is_read_is_finished() -> None:
    table, frontier = Table(list(range(100))), start([24, 49, 74, 99])
    for _ in range(30):
        frontier = table.plan(frontier, Limits(max_rows=10, lanes=2, vnode_rows=25))
        table.rows += range(table.rows[-1] + 1, table.rows[-1] + 21)
    assert not frontier.unfinished


def test_empty_vnodes_complete_without_taking_budget() -> None:
    table = Table([50])
    moved = table.plan(start(range(0, 49, 4)), Limits(max_rows=2, lanes=1, vnode_rows=1))
    assert not moved.unfinished
    assert list(moved.per_vnode())[-1][1] == Completed(1)


def test_an_empty_table_is_finished_by_one_batch() -> None:
    assert not Table([]).plan(start([3, 6, 9]), Limits(max_rows=1, lanes=1, vnode_rows=1)).unfinished


def test_a_vnode_with_exactly_the_rows_that_are_left_completes() -> None:
    table = Table([1, 2, 3])
    assert not table.plan(start([]), Limits(max_rows=3, lanes=1, vnode_rows=1)).unfinished


def test_a_vnode_completes_although_its_last_row_was_deleted_after_it_had_been_read() -> None:
    table = Table([1, 2, 3])
    frontier = table.plan(start([]), Limits(max_rows=2, lanes=1, vnode_rows=1))
    table.rows = []
    assert (
        table.plan(frontier, Limits(max_rows=2, lanes=1, vnode_rows=1)).slices
        == start([]).advanced({0: Completed(2)}).slices
    )


def test_vnodes_are_measured_together_but_not_all_of_many() -> None:
    table = Table([])
    moved = table.plan(start(range(1000)), Limits(max_rows=1 << 62, lanes=4, vnode_rows=1))
    assert not moved.unfinished
    assert [len(requests) for requests in table.asked] == [MAX_REQUESTS] * 3 + [1001 - 3 * MAX_REQUESTS]


def test_not_more_is_measured_than_the_budget_will_take() -> None:
    table = Table(list(range(1000)))
    table.plan(start(range(9, 999, 10)), Limits(max_rows=20, lanes=1, vnode_rows=10))
    assert sum(len(requests) for requests in table.asked) <= 4


def test_vnodes_that_hold_far_fewer_rows_than_was_guessed_are_measured_in_few_rounds() -> None:
    table, frontier = Table(list(range(200))), start(range(1, 200, 2))
    moved = table.plan(frontier, Limits(max_rows=150, lanes=2, vnode_rows=100))
    assert moved.row_count == 150
    assert len(table.asked) <= 8


def test_rows_behind_vnodes_that_are_empty_are_not_all_counted() -> None:
    """Old rows may have been deleted meanwhile; the vnodes after them may be full."""
    table, frontier = Table(list(range(1000, 3000))), start([*range(100, 1000, 10), *range(1000, 3000, 100)])
    moved = table.plan(frontier, Limits(max_rows=200, lanes=2, vnode_rows=100))
    assert moved.row_count == 200
    assert len(table.asked) <= 24
    assert max(map(len, table.asked)) <= 8
