"""The laws of `UpsertState`, held against every state: what is put, found, deleted and cleared."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from backfill_state import StateConflictError, StateLayoutError
from backfill_state.upsert import (
    DuckDBUpsertState,
    GetStats,
    InMemoryUpsertState,
    PutStats,
    Totals,
    Updates,
    UpsertLayout,
    UpsertState,
)
from tests.upsert_state.sizes import NOTHING, SIZE_GONE, SIZE_X, SIZE_YY, YY, A, B, C, X
from tests.upsert_state.upserts import LAYOUT, Cells, diffs_of, entries, keys_of, put, rows_of, updates


def gone(order: int) -> tuple[object, ...]:
    return (order, 0, False, SIZE_GONE, (None, None))


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
    # Nor more of them where most rows are short.
    put(state, "u", *((("us", number), 1, 0, X) for number in range(90)))
    assert state.multi_get(keys_of(keys), most_bytes=three).rows == rows_of(rows[:3])


def test_a_key_without_a_row_has_none_beside_one_with_a_long_value(state: UpsertState) -> None:
    """This holds where the long value was the first to be put."""
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
