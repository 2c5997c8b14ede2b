"""Errors of the files of the state directory are passed on with the options that mend them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from backfill.errors import StateError
from backfill.state_dir.failures import as_ours
from backfill_state import DuckDBProgressStore, StreamIdentity
from backfill_state.upsert import DuckDBUpsertState, Updates, UpsertLayout


def test_last_rows_that_are_damaged_are_not_reported_as_rebuilt(tmp_path: Path) -> None:
    path = tmp_path / "upsert.duckdb"
    path.write_bytes(b"not a database")
    layout = UpsertLayout("1f0c9a77", pa.schema([("id", pa.int64())]), pa.schema([("n", pa.int64())]))
    with pytest.raises(StateError, match=r"does not suffice.*delete it.*onExistingState=restart\)$"), as_ours():
        DuckDBUpsertState(path, layout).totals()


def test_progress_that_takes_too_much_memory_is_not_reported_to_need_that_of_last_rows(tmp_path: Path) -> None:
    """The option `stateMemory` is for the last rows, and a stream that keeps none has no use for it."""
    key, vnodes = pa.schema([("id", pa.string())]), 40_000
    ends = pa.table({"vnode": pa.array(range(vnodes), pa.int32()), "id": [f"{end:01000}" for end in range(vnodes)]})
    with DuckDBProgressStore(tmp_path / "backfill.duckdb") as store:
        store.begin(StreamIdentity("1f0c9a77", "postgres", "system", "public.t", "1", key))
        with pytest.raises(StateError, match="start over with a smaller vnodeCount") as caught, as_ours():
            store.set_bounds(ends)
    assert "stateMemory" not in str(caught.value)


def test_last_rows_that_take_too_much_memory_may_be_given_more(tmp_path: Path) -> None:
    key, row, rows = pa.schema([("id", pa.int64())]), pa.schema([("text", pa.string())]), 5000
    ones = pa.array([1] * rows, pa.int64())
    updates = Updates(
        pa.table({"id": pa.array(range(rows), pa.int64())}),
        pa.table({"order_key": ones, "order_tie": ones, "present": pa.array([True] * rows)}),
        pa.table({"text": [f"{number:0500}" for number in range(rows)]}),
    )
    with (
        DuckDBUpsertState(tmp_path / "upsert.duckdb", UpsertLayout("1f0c9a77", key, row), memory_limit="1MB") as state,
        pytest.raises(StateError, match=r"needs more memory.*Allow it more with the option stateMemory$") as caught,
        as_ours(),
        state.batch("t"),
    ):
        state.multi_put(updates)
    assert "vnode" not in str(caught.value)
