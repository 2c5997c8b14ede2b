"""How much a batch may take."""

from __future__ import annotations

import pytest

from backfill.advance import ENOUGH_CHANGES, UNLIMITED, grown


def test_each_batch_that_only_works_off_changes_may_take_twice_as_many_up_to_enough() -> None:
    assert [grown(1000, before) for before in (0, 1, 2, 10)] == [1000, 2000, 4000, 1_024_000]
    assert {grown(rows, before) for rows in (1, 1000, 1_999_999) for before in (21, 1 << 40)} == {ENOUGH_CHANGES}


@pytest.mark.parametrize("rows", [ENOUGH_CHANGES, ENOUGH_CHANGES + 1, UNLIMITED])
def test_a_batch_that_may_take_enough_stays_as_it_is(rows: int) -> None:
    assert {grown(rows, before) for before in (0, 1, 1 << 40)} == {rows}
