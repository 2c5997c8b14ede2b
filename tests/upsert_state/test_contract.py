"""The laws of `UpsertState`, held against every state."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from backfill_state import ConsolidationError, StateConflictError, StateLayoutError
from backfill_state.upsert import (
    ConsolidateStats,
    DuckDBUpsertState,
    GetStats,
    InMemoryUpsertState,
    MergeStats,
    PutStats,
    Totals,
    Updates,
    UpsertLayout,
    UpsertState,
)
from tests.upsert_state.upserts import LAYOUT, Cells, diffs_of, entries, keys_of, put, rows_of, updates

A, B, C = ("eu", 1), ("eu", 2), ("us", 1)
KEY = 2 + 8
"""Bytes of each of these keys."""
HEAD = 16
X, YY = ("x", 1.0), ("yy", 2.0)
SIZE_X, SIZE_YY, SIZE_GONE = HEAD + KEY + 1 + 8, HEAD + KEY + 2 + 8, HEAD + KEY
NOTHING = (None, None, None, None, (None, None))


def gone(order: int, tie: int = 0) -> tuple[object, ...]:
    return (order, tie, False, SIZE_GONE, (None, None))


class StopError(Exception):
    pass


def test_a_new_state_is_empty(state: UpsertState) -> None:
    assert (state.token(), state.totals(), state.consolidating()) == (None, Totals(), False)
    assert entries(state, A, B) == [NOTHING, NOTHING]


def test_what_is_put_is_found_with_its_order_and_size(state: UpsertState) -> None:
    stats = put(state, "t", (A, 5, 1, X), (B, 5, 2, YY))
    assert stats == PutStats(puts=2, size=SIZE_X + SIZE_YY, inserts=2, values_diff=2, size_diff=SIZE_X + SIZE_YY)
    assert entries(state, B, A) == [(5, 2, True, SIZE_YY, YY), (5, 1, True, SIZE_X, X)]
    assert state.totals() == Totals(2, 0, SIZE_X + SIZE_YY)


def test_answers_are_in_the_order_of_the_keys_and_a_key_may_come_twice(state: UpsertState) -> None:
    put(state, "t", (A, 1, 0, X), (C, 1, 0, None))
    found = state.multi_get(keys_of([C, B, A, A, C]))
    assert found.rows == rows_of([None, None, X, X, None])
    assert found.entries["present"].to_pylist() == [False, None, True, True, False]
    assert found.stats == GetStats(gets=5, found=4, size=2 * SIZE_X + 2 * SIZE_GONE)


def test_no_keys_find_nothing(state: UpsertState) -> None:
    found = state.multi_get(keys_of([]))
    assert (found.rows, found.stats) == (rows_of([]), GetStats())
    assert put(state, "t") == PutStats()


def test_of_long_rows_as_many_are_found_as_fit(state: UpsertState) -> None:
    keys = [("eu", number) for number in range(9)]
    rows: list[Cells | None] = [(f"{number}" * 2000, 0.0) for number in range(9)]
    put(state, "t", *((key, 1, 0, row) for key, row in zip(keys, rows, strict=True)))
    assert state.multi_get(keys_of(keys), most_bytes=13_000).rows == rows_of(rows[:6])
    three = int(state.multi_get(keys_of(keys[:3])).entries["size"].to_numpy().sum())
    assert state.multi_get(keys_of(keys), most_bytes=three).rows == rows_of(rows[:3])
    assert state.multi_get(keys_of(keys), most_bytes=three - 1).rows == rows_of(rows[:2])
    assert state.multi_get(keys_of(keys[8:]), most_bytes=1).rows == rows_of(rows[8:])
    assert state.multi_get(keys_of([]), most_bytes=1).rows == rows_of([])
    assert state.multi_get(keys_of(keys)).rows == rows_of(rows)


def test_a_key_without_a_row_has_none_beside_one_with_a_long_value(state: UpsertState) -> None:
    """Also where that was the first to be put."""
    long: Cells = ("x" * 5000, 0.0)
    put(state, "t", (A, 1, 0, long))
    assert state.multi_get(keys_of([("eu", 77), A, ("eu", 78)])).rows == rows_of([None, long, None])


def test_a_later_update_replaces_a_row(state: UpsertState) -> None:
    put(state, "t", (A, 5, 0, X))
    assert put(state, "u", (A, 6, 0, YY)) == PutStats(puts=1, size=SIZE_YY, updates=1, size_diff=1)
    assert entries(state, A) == [(6, 0, True, SIZE_YY, YY)]


@pytest.mark.parametrize("late", [(4, 9), (5, 2), (5, 3)])
def test_an_update_that_is_not_later_is_dropped_and_counted(state: UpsertState, late: tuple[int, int]) -> None:
    put(state, "t", (A, 5, 3, X))
    assert put(state, "u", (A, *late, YY), (B, *late, None)) == PutStats(
        puts=2, stale=1, size=SIZE_GONE, tombstones_diff=1, size_diff=SIZE_GONE
    )
    assert entries(state, A) == [(5, 3, True, SIZE_X, X)]


def test_of_updates_of_one_key_in_a_call_the_last_by_order_wins(state: UpsertState) -> None:
    stats = put(state, "t", (A, 5, 1, X), (A, 5, 3, YY), (A, 5, 2, None), (A, 4, 9, None))
    assert stats == PutStats(puts=4, stale=3, size=SIZE_YY, inserts=1, values_diff=1, size_diff=SIZE_YY)
    assert entries(state, A) == [(5, 3, True, SIZE_YY, YY)]


def test_of_updates_of_one_key_and_one_order_the_first_wins(state: UpsertState) -> None:
    put(state, "t", (A, 5, 1, X), (A, 5, 1, YY), (A, 5, 1, None))
    assert entries(state, A) == [(5, 1, True, SIZE_X, X)]


def test_a_deletion_leaves_a_tombstone_that_keeps_its_order(state: UpsertState) -> None:
    put(state, "t", (A, 5, 0, X))
    assert put(state, "u", (A, 6, 0, None)) == PutStats(
        puts=1, size=SIZE_GONE, deletes=1, values_diff=-1, tombstones_diff=1, size_diff=SIZE_GONE - SIZE_X
    )
    assert entries(state, A) == [gone(6)]
    assert put(state, "v", (A, 5, 9, YY)) == PutStats(puts=1, stale=1)
    assert state.totals() == Totals(0, 1, SIZE_GONE)


def test_deleting_an_absent_key_keeps_the_order_and_counts_no_delete(state: UpsertState) -> None:
    assert put(state, "t", (A, 6, 0, None)) == PutStats(puts=1, size=SIZE_GONE, tombstones_diff=1, size_diff=SIZE_GONE)
    assert put(state, "u", (A, 7, 0, None)) == PutStats(puts=1, size=SIZE_GONE)
    assert entries(state, A) == [gone(7)]


@pytest.mark.parametrize("kind", ["memory", "duckdb"])
def test_without_tombstones_a_deleted_key_is_as_one_that_was_never_there(kind: str, tmp_path: Path) -> None:
    made: UpsertState = InMemoryUpsertState(LAYOUT, tombstones=False)
    if kind == "duckdb":
        made = DuckDBUpsertState(tmp_path / "upsert.duckdb", LAYOUT, tombstones=False, segment_entries=4)
    with made as state:
        for number in range(5):
            put(state, f"{number} in", (A, 3 * number, 0, X), (B, 3 * number, 0, YY), (C, 3 * number, 0, X))
            gone = put(state, f"{number} out", (A, 3 * number + 1, 0, None), (B, 3 * number + 1, 0, None))
            assert gone == PutStats(puts=2, deletes=2, values_diff=-2, size_diff=-SIZE_X - SIZE_YY)
            assert entries(state, A, B, C) == [NOTHING, NOTHING, (3 * number, 0, True, SIZE_X, X)]
            assert state.totals() == Totals(1, 0, SIZE_X)
            assert put(state, f"{number} again", (A, -1, 0, None)) == PutStats(puts=1)
            assert put(state, f"{number} back", (A, -1, 0, X)).inserts == 1


def test_clearing_is_part_of_a_batch_and_forgets_rows_and_tombstones(state: UpsertState) -> None:
    put(state, "t1", (A, 5, 0, X), (B, 5, 0, None))
    with state.batch("t2"):
        state.clear()
        assert state.totals() == Totals()
        assert state.multi_put(updates((B, 1, 0, YY))).inserts == 1
    with state.batch("t2") as new:
        assert not new
        state.clear()
    assert entries(state, A, B) == [NOTHING, (1, 0, True, SIZE_YY, YY)]
    with pytest.raises(StateConflictError, match="in a batch only"):
        state.clear()


def test_a_key_that_was_deleted_is_inserted_again(state: UpsertState) -> None:
    put(state, "t", (A, 5, 0, X))
    put(state, "u", (A, 6, 0, None))
    assert put(state, "v", (A, 7, 0, X)) == PutStats(
        puts=1, size=SIZE_X, inserts=1, values_diff=1, tombstones_diff=-1, size_diff=SIZE_X - SIZE_GONE
    )
    assert state.totals() == Totals(1, 0, SIZE_X)


def test_a_row_may_be_all_null_and_is_no_tombstone(state: UpsertState) -> None:
    put(state, "t", (A, 1, 0, (None, None)))
    assert entries(state, A) == [(1, 0, True, SIZE_GONE, (None, None))]
    assert state.totals() == Totals(1, 0, SIZE_GONE)


def test_orders_reach_from_end_to_end(state: UpsertState) -> None:
    least, most = -(2**63), 2**63 - 1
    put(state, "t", (A, least, least, X))
    put(state, "u", (A, least, most, YY))
    assert put(state, "v", (A, most, least, X)).updates == 1
    assert entries(state, A) == [(most, least, True, SIZE_X, X)]


def test_a_batch_sees_its_own_writes(state: UpsertState) -> None:
    with state.batch("t") as new:
        assert new
        state.multi_put(updates((A, 1, 0, X)))
        assert entries(state, A) == [(1, 0, True, SIZE_X, X)]
        assert state.multi_put(updates((A, 2, 0, YY), (B, 2, 0, X))).updates == 1
        assert entries(state, A) == [(2, 0, True, SIZE_YY, YY)]
        assert state.totals() == Totals(2, 0, SIZE_X + SIZE_YY)
    assert state.token() == "t"
    assert state.totals() == Totals(2, 0, SIZE_X + SIZE_YY)


def test_what_was_found_before_a_write_is_not_taken_for_what_stands_after_it(state: UpsertState) -> None:
    put(state, "t", (A, 1, 0, X), (B, 1, 0, X))
    with state.batch("u"):
        assert [order for order, *_ in entries(state, A, B, C)] == [1, 1, None]
        first = state.multi_put(updates((A, 5, 0, YY), (B, 1, 0, YY), (C, 5, 0, X)))
        assert (first.stale, first.updates, first.inserts) == (1, 1, 1)
        second = state.multi_put(updates((A, 5, 0, None), (B, 2, 0, None), (C, 4, 0, YY)))
        assert (second.stale, second.deletes) == (2, 1)
        assert entries(state, A, B, C) == [(5, 0, True, SIZE_YY, YY), gone(2), (5, 0, True, SIZE_X, X)]
        state.clear()
        third = state.multi_put(updates((A, 1, 0, X), (B, 1, 0, X), (C, 1, 0, X)))
        assert (third.stale, third.inserts) == (0, 3)
    assert state.totals() == Totals(3, 0, 3 * SIZE_X)


def test_a_batch_that_fails_has_written_nothing(state: UpsertState) -> None:
    put(state, "t", (A, 1, 0, X))

    def fail() -> None:
        with state.batch("u"):
            state.multi_put(updates((A, 2, 0, YY), (B, 2, 0, X)))
            raise StopError

    with pytest.raises(StopError):
        fail()
    assert (state.token(), state.totals()) == ("t", Totals(1, 0, SIZE_X))
    assert entries(state, A, B) == [(1, 0, True, SIZE_X, X), NOTHING]
    assert put(state, "u", (B, 2, 0, X)).inserts == 1


def test_the_last_batch_again_is_recognised_and_counts_nothing(state: UpsertState) -> None:
    put(state, "t", (A, 1, 0, X))
    with state.batch("t") as new:
        assert not new
        assert state.multi_put(updates((A, 1, 0, X), (B, 9, 0, X))) == PutStats()
    assert state.totals() == Totals(1, 0, SIZE_X)
    assert entries(state, B) == [NOTHING]


def test_a_batch_without_writes_moves_the_token(state: UpsertState) -> None:
    with state.batch("t"):
        pass
    assert state.token() == "t"


def test_writing_needs_a_batch_and_only_one(state: UpsertState) -> None:
    with pytest.raises(StateConflictError, match="written in a batch only"):
        state.multi_put(updates((A, 1, 0, X)))
    with pytest.raises(StateConflictError, match="written in a batch only"):
        state.multi_merge(keys_of([A]), rows_of([X]), diffs_of(1))
    with pytest.raises(StateConflictError, match="end it first"), state.batch("t"), state.batch("u"):
        pass
    with pytest.raises(StateConflictError, match="end it first"), state.batch("t"):
        state.reset()
    assert state.token() is None


def test_reset_forgets_everything(state: UpsertState) -> None:
    put(state, "t", (A, 1, 0, X))
    state.reset()
    assert (state.token(), state.totals()) == (None, Totals())
    assert put(state, "t", (A, 1, 0, X)).inserts == 1


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


_GOOD = updates((A, 1, 0, X))
_UNORDERED = _GOOD.heads.set_column(0, "order_key", pa.nulls(1, pa.int64()))
_LONGER = updates((A, 1, 0, X), (B, 1, 0, X))


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        (Updates(_GOOD.keys.select(["id", "region"]), _GOOD.heads, _GOOD.rows), "the keys have columns"),
        (Updates(_GOOD.keys, _GOOD.heads.select(["order_key"]), _GOOD.rows), "the heads have columns"),
        (Updates(_GOOD.keys, _GOOD.heads, _GOOD.rows.rename_columns(["a", "b"])), "the rows have columns"),
        (Updates(_GOOD.keys, _LONGER.heads, _GOOD.rows), "1 keys and 2 lines of heads"),
        (Updates(_GOOD.keys, _GOOD.heads, _LONGER.rows), "1 keys and 2 lines of rows"),
        (updates((("eu", None), 1, 0, X)), "key column 'id' is null in 1 lines"),
        (Updates(_GOOD.keys, _UNORDERED, _GOOD.rows), "never null"),
    ],
)
def test_updates_that_do_not_fit_are_refused(state: UpsertState, bad: Updates, match: str) -> None:
    with pytest.raises(StateLayoutError, match=match), state.batch("t"):
        state.multi_put(bad)
    assert state.token() is None


@pytest.mark.parametrize(("diffs", "match"), [((1, 1), "a diff of int64"), ((2,), "one is neither"), ((0,), "neither")])
def test_diffs_that_do_not_fit_are_refused(state: UpsertState, diffs: tuple[int, ...], match: str) -> None:
    with pytest.raises(StateLayoutError, match=match), state.batch("t"):
        state.multi_merge(keys_of([A]), rows_of([X]), diffs_of(*diffs))


def test_chunked_columns_are_as_good_as_whole_ones(state: UpsertState) -> None:
    parts = [updates((A, 1, 0, X)), updates((B, 1, 0, None)), updates((C, 1, 0, YY))]
    keys, heads, rows = (
        pa.concat_tables([getattr(part, name) for part in parts]) for name in ("keys", "heads", "rows")
    )
    with state.batch("t"):
        state.multi_put(Updates(keys, heads, rows))
    assert state.multi_get(keys).rows == rows_of([X, None, YY])


def test_a_layout_needs_a_key_and_a_row() -> None:
    one = pa.schema([pa.field("a", pa.int8())])
    for key, row in ((one, pa.schema([])), (pa.schema([]), one)):
        with pytest.raises(StateLayoutError, match="at least one column"):
            UpsertLayout("s", key, row)
