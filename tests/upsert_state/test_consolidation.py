"""The laws of `UpsertState`, held against every state: it is made from its output."""

from __future__ import annotations

import pytest

from backfill_state import ConsolidationError, StateConflictError, StateLayoutError
from backfill_state.upsert import ConsolidateStats, MergeStats, Totals, UpsertState
from tests.upsert_state.sizes import NOTHING, SIZE_X, SIZE_YY, YY, A, B, C, X
from tests.upsert_state.upserts import Cells, diffs_of, entries, keys_of, put, rows_of


def merge(state: UpsertState, *lines: tuple[Cells, Cells, int], completed: bool = False) -> ConsolidateStats:
    keys, rows, diffs = [line[0] for line in lines], [line[1] for line in lines], [line[2] for line in lines]
    return state.consolidate_chunk(keys_of(keys), rows_of(list(rows)), diffs_of(*diffs), completed=completed)


def test_a_state_is_consolidated_from_its_output_in_any_order(state: UpsertState) -> None:
    with state.batch("t"):
        assert merge(state, (A, X, -1), (A, YY, 1), (B, X, -1)) == ConsolidateStats(
            MergeStats(3, 2 * SIZE_X + SIZE_YY, -1)
        )
        assert state.consolidating()
    assert (state.totals(), state.consolidating()) == (Totals(), True)
    with state.batch("u"):
        assert merge(state, (C, X, 1), (A, X, 1), (B, X, 1), completed=True) == ConsolidateStats(
            MergeStats(3, 3 * SIZE_X, 3), values_diff=2, size_diff=SIZE_X + SIZE_YY
        )
    assert entries(state, A, B, C) == [(None, None, True, SIZE_YY, YY), NOTHING, (None, None, True, SIZE_X, X)]
    assert (state.totals(), state.consolidating()) == (Totals(2, 0, SIZE_X + SIZE_YY), False)


def test_any_update_is_later_than_a_consolidated_row(state: UpsertState) -> None:
    with state.batch("t"):
        merge(state, (A, X, 1), (B, X, 1), completed=True)
    stats = put(state, "u", (A, -(2**63), 0, YY), (B, -5, 0, None))
    assert (stats.updates, stats.deletes, stats.stale) == (1, 1, 0)


def test_rows_are_told_apart_bit_by_bit_when_they_are_consolidated(state: UpsertState) -> None:
    with state.batch("t"):
        merge(state, (A, ("x", 0.0), 1), (A, ("x", -0.0), 1), (A, ("x", 0.0), -1), completed=True)
    [(*_, row)] = entries(state, A)
    assert str(row[1]) == "-0.0"


def test_reading_and_putting_before_the_end_of_consolidation_is_an_error(state: UpsertState) -> None:
    with state.batch("t"):
        state.multi_merge(keys_of([A]), rows_of([X]), diffs_of(1))
    with pytest.raises(StateConflictError, match="a part of its output is still to come"):
        state.multi_get(keys_of([A]))
    with pytest.raises(StateConflictError, match="a part of its output is still to come"):
        put(state, "u", (A, 1, 0, X))
    with state.batch("u"):
        merge(state, completed=True)
    assert state.totals() == Totals(1, 0, SIZE_X)


@pytest.mark.parametrize(
    "lines",
    [
        [(A, X, 1), (A, YY, 1)],
        [(A, X, 1), (A, X, 1)],
        [(A, X, -1)],
        [(A, X, -1), (A, YY, 1)],
        [(A, X, 1), (A, YY, 1), (A, YY, 1), (A, YY, -1)],
    ],
)
def test_output_that_does_not_add_up_is_refused_without_values(
    state: UpsertState, lines: list[tuple[Cells, Cells, int]]
) -> None:
    with state.batch("t"):
        merge(state, (B, X, 1))
    with pytest.raises(ConsolidationError, match="the output does not add up: 1 key") as caught, state.batch("u"):
        merge(state, *lines, completed=True)
    assert (caught.value.keys, caught.value.lines) == (1, 1 + len(lines))
    assert "eu" not in str(caught.value)
    assert (state.token(), state.consolidating()) == ("t", True)
    with state.batch("v"):
        merge(state, completed=True)
    assert state.totals() == Totals(1, 0, SIZE_X)


def test_an_empty_output_consolidates_to_an_empty_state(state: UpsertState) -> None:
    with state.batch("t"):
        assert merge(state, completed=True) == ConsolidateStats()
    assert entries(state, A) == [NOTHING]


def test_a_chunk_of_output_given_again_is_recognised(state: UpsertState) -> None:
    for _ in range(2):
        with state.batch("t"):
            merge(state, (A, X, 1))
    for _ in range(2):
        with state.batch("u"):
            merge(state, completed=True)
    assert state.totals() == Totals(1, 0, SIZE_X)


def test_output_is_not_mixed_with_a_state_that_is_complete(state: UpsertState) -> None:
    put(state, "t", (A, 1, 0, None))
    with pytest.raises(StateConflictError, match="is complete and holds 1 keys"), state.batch("u"):
        merge(state, (A, X, 1))
    state.reset()
    with state.batch("u"):
        merge(state, (A, X, 1), completed=True)


def test_consolidation_can_be_begun_anew(state: UpsertState) -> None:
    with state.batch("t"):
        merge(state, (A, X, -1))
    state.reset()
    assert not state.consolidating()
    assert entries(state, A) == [NOTHING]


@pytest.mark.parametrize(("diffs", "match"), [((1, 1), "a diff of int64"), ((2,), "one is neither"), ((0,), "neither")])
def test_diffs_that_do_not_fit_are_refused(state: UpsertState, diffs: tuple[int, ...], match: str) -> None:
    with pytest.raises(StateLayoutError, match=match), state.batch("t"):
        state.multi_merge(keys_of([A]), rows_of([X]), diffs_of(*diffs))
