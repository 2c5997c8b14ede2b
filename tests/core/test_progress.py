"""The life of the vnodes: which keys are covered, how states are folded, when a backfill is over."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from backfill.plan import Piece, pieces
from backfill.progress import Completed, CompletedRun, Finished, Frontier, InProgress, NotStarted, rows_left, settled
from backfill.vnode import WHOLE_TABLE, KeyRange, merged, ranges_between
from tests.core.numbered import KEYS, holds, key
from tests.core.strategies import finished, frontiers

SIZE = 4
BOUNDS = tuple(key(number) for number in (4, 9, 14))

states = st.lists(st.sampled_from(["not started", "in progress", "completed"]), min_size=SIZE, max_size=SIZE)


def frontier_of(names: list[str]) -> Frontier:
    """Returns four vnodes of five keys each in these states; those in progress have read two keys."""
    start = Frontier.at_start(BOUNDS)
    moved: dict[int, InProgress | Completed] = {}
    for number, name in enumerate(names):
        if name == "in progress":
            moved[number] = InProgress(key(5 * number + 1), 2)
        if name == "completed":
            moved[number] = Completed(5)
    return start.advanced(moved)


@given(states)
def test_covered_are_the_keys_whose_rows_have_been_emitted_and_no_others(names: list[str]) -> None:
    emitted = {"not started": 0, "in progress": 2, "completed": 5}
    coverage = frontier_of(names).coverage
    for number in KEYS:
        assert any(holds(item, number) for item in coverage) == (number % 5 < emitted[names[number // 5]])


@given(states)
def test_covered_and_remaining_keys_are_all_keys_once(names: list[str]) -> None:
    frontier = frontier_of(names)
    parts = [*frontier.coverage, *(vnode.remaining for vnode in frontier.unfinished)]
    assert all(sum(holds(item, number) for item in parts) == 1 for number in KEYS)


@given(states)
def test_every_vnode_is_listed_in_ascending_order_however_they_are_folded(names: list[str]) -> None:
    per_vnode = list(frontier_of(names).per_vnode())
    kinds = {NotStarted: "not started", InProgress: "in progress", Completed: "completed"}
    assert [(number, kinds[type(progress)]) for number, progress in per_vnode] == list(enumerate(names))


@given(states, st.lists(st.integers(0, SIZE - 1), max_size=3))
def test_what_was_lost_stands_at_the_end_once_more_and_is_counted_beside_the_rest(
    names: list[str], lost: list[int]
) -> None:
    frontier = frontier_of(names)
    ranges = [ranges_between(BOUNDS)[number] for number in lost]
    reopened = frontier.reopened(ranges)
    assert reopened.slices[: len(frontier.slices)] == frontier.slices
    assert [vnode.range for vnode in reopened.unfinished][len(frontier.unfinished) :] == ranges
    assert [number for number, _ in reopened.per_vnode()] == list(range(SIZE + len(lost)))
    done = reopened.advanced({vnode.number: Completed(5) for vnode in reopened.unfinished})
    read = [piece.range for piece in pieces(frontier, done)]
    for number in KEYS:
        expected = sum(holds(vnode.remaining, number) for vnode in reopened.unfinished)
        assert sum(holds(item, number) for item in read) == expected


def test_what_was_lost_next_to_what_had_been_lost_before_is_told_apart_from_it() -> None:
    """The two lost ranges are one slice in the end, and still two pieces."""
    (bound,) = bounds = (("m",),)
    read = Frontier.at_start(bounds).advanced({0: Completed(1), 1: Completed(1)})
    first = read.reopened([KeyRange(None, bound)]).advanced({2: Completed(4)})
    second = first.reopened([KeyRange(bound, None)]).advanced({3: Completed(5)})
    assert second.slices[-1] == CompletedRun(2, WHOLE_TABLE, (4, 5))
    assert pieces(first, second) == (Piece(KeyRange(bound, None), 5),)
    assert pieces(read, first) == (Piece(KeyRange(None, bound), 4),)


@given(states)
def test_completed_neighbours_are_one_slice_with_each_ones_row_count(names: list[str]) -> None:
    slices = frontier_of(names).slices
    assert not any(isinstance(one, CompletedRun) and isinstance(two, CompletedRun) for one, two in pairwise(slices))
    counts = [rows for item in slices if isinstance(item, CompletedRun) for rows in item.row_counts]
    assert counts == [5] * names.count("completed")


@given(states)
def test_rows_and_vnodes_are_counted(names: list[str]) -> None:
    frontier = frontier_of(names)
    assert frontier.vnode_count == SIZE
    assert frontier.row_count == 5 * names.count("completed") + 2 * names.count("in progress")
    assert len(frontier.unfinished) == SIZE - names.count("completed")


@given(states, st.permutations(range(SIZE)))
def test_the_order_in_which_vnodes_complete_does_not_show(names: list[str], order: list[int]) -> None:
    one_by_one = frontier_of(names)
    for number in order:
        one_by_one = one_by_one.advanced({number: Completed(7)})
    together = frontier_of(names).advanced(dict.fromkeys(range(SIZE), Completed(7)))
    assert one_by_one == together
    assert len(together.slices) == 1


@given(states)
def test_a_vnode_that_has_completed_does_not_move_any_more(names: list[str]) -> None:
    frontier = frontier_of(names)
    done = {number: InProgress(key(0), 1) for number, name in enumerate(names) if name == "completed"}
    assert frontier.advanced(done) == frontier


@given(states)
def test_coverage_only_grows(names: list[str]) -> None:
    frontier = frontier_of(names)
    later = frontier.advanced({vnode.number: Completed(9) for vnode in frontier.unfinished[:1]})
    for number in KEYS:
        if any(holds(item, number) for item in frontier.coverage):
            assert any(holds(item, number) for item in later.coverage)


def test_a_completed_vnode_covers_keys_beyond_its_last_row() -> None:
    frontier = frontier_of(["completed", "not started", "not started", "completed"])
    assert frontier.coverage == (KeyRange(None, key(4)), KeyRange(key(14), None))


def test_an_empty_vnode_completes_without_a_position() -> None:
    frontier = Frontier.at_start(BOUNDS).advanced({1: Completed(0)})
    assert frontier.coverage == (KeyRange(key(4), key(9)),)
    assert frontier.row_count == 0


@given(frontiers())
def test_a_frontier_is_settled_when_nothing_is_left(frontier: Frontier) -> None:
    over = settled(frontier)
    if frontier.unfinished:
        assert over is frontier
    else:
        assert over == Finished(frontier.vnode_count, frontier.row_count)
        assert frontier.coverage == (WHOLE_TABLE,)


@given(finished)
def test_what_is_settled_stays(progress: Finished) -> None:
    assert settled(progress) is progress


@given(frontiers())
def test_coverage_has_as_few_ranges_as_possible(frontier: Frontier) -> None:
    assert merged(frontier.coverage) == frontier.coverage


@given(states)
def test_the_bounds_of_unfinished_vnodes_are_known_by_their_number(names: list[str]) -> None:
    known = dict(frontier_of(names).known_bounds())
    assert all(BOUNDS[number] == end for number, end in known.items())
    around = {at for at, name in enumerate(names) if name != "completed"}
    assert known.keys() >= {number for number in range(SIZE - 1) if {number, number + 1} & around}


def test_how_many_rows_are_left_is_estimated_from_the_completed_vnodes() -> None:
    start = Frontier.at_start((("b",), ("d",), ("f",)))
    assert rows_left(start) is None
    assert rows_left(start.advanced({0: InProgress(("a",), 9), 3: Completed(0)})) is None
    assert rows_left(start.advanced({0: Completed(10), 1: Completed(20), 2: InProgress(("e",), 5)})) == 10
    assert rows_left(start.advanced({0: Completed(10), 1: Completed(20), 3: Completed(2)})) == 15
    assert rows_left(start.advanced({0: Completed(1), 1: InProgress(("c",), 99)})) == 50, "no fewer than seen so far"
    assert rows_left(start.advanced({0: Completed(1), 1: InProgress(("c",), 99), 2: InProgress(("e",), 60)})) == 0
    assert rows_left(start.advanced({number: Completed(5) for number in range(4)})) == 0
    assert rows_left(Finished(4, 60)) == 0
