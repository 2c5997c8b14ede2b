"""Key ranges: how bounds cut the key space, and how ranges are put together again."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from backfill.vnode import WHOLE_TABLE, KeyRange, merged, ranges_between
from tests.core.numbered import KEYS, holds, key

bounds = st.sets(st.integers(0, 18)).map(sorted)


@given(bounds)
def test_bounds_cut_the_key_space_into_ranges_that_hold_each_key_once(cuts: list[int]) -> None:
    ranges = ranges_between([key(cut) for cut in cuts])
    assert len(ranges) == len(cuts) + 1
    assert all(sum(holds(item, number) for item in ranges) == 1 for number in KEYS)


@given(bounds)
def test_a_bound_belongs_to_the_range_that_it_ends(cuts: list[int]) -> None:
    ranges = ranges_between([key(cut) for cut in cuts])
    assert all(holds(item, cut) for item, cut in zip(ranges, cuts, strict=False))


def test_without_bounds_there_is_one_range_of_all_keys() -> None:
    assert ranges_between([]) == (WHOLE_TABLE,)


@given(bounds, st.data())
def test_merged_ranges_hold_the_same_keys_and_none_touches_the_next(cuts: list[int], data: st.DataObject) -> None:
    ranges = ranges_between([key(cut) for cut in cuts])
    chosen = [item for item in ranges if data.draw(st.booleans())]
    coverage = merged(chosen)
    assert [any(holds(item, number) for item in coverage) for number in KEYS] == [
        any(holds(item, number) for item in chosen) for number in KEYS
    ]
    assert all(one.upto is not None and one.upto != two.after for one, two in pairwise(coverage))


@given(bounds)
def test_all_ranges_together_are_the_whole_table(cuts: list[int]) -> None:
    assert merged(ranges_between([key(cut) for cut in cuts])) == (WHOLE_TABLE,)


def test_two_ranges_that_are_open_in_the_middle_do_not_touch() -> None:
    both = (KeyRange(None, key(1)), KeyRange(key(2), None))
    assert merged(both) == both
