"""What a file of the state directory says is passed on with the options that mend it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from backfill.errors import StateError
from backfill.state_errors import as_ours
from backfill_state import DuckDBProgressStore, StreamIdentity
from backfill_state.upsert import DuckDBUpsertState, UpsertLayout


def test_last_rows_that_are_damaged_are_not_said_to_be_rebuilt(tmp_path: Path) -> None:
    path = tmp_path / "upsert.duckdb"
    path.write_bytes(b"not a database")
    layout = UpsertLayout("1f0c9a77", pa.schema([("id", pa.int64())]), pa.schema([("n", pa.int64())]))
    with pytest.raises(StateError, match=r"does not suffice.*delete it.*onExistingState=restart\)$"), as_ours():
        DuckDBUpsertState(path, layout).totals()


def test_progress_that_takes_too_much_memory_is_not_said_to_need_that_of_last_rows(tmp_path: Path) -> None:
    """The option `stateMemory` is for the last rows, and a stream that keeps none has no use for it."""
    key, vnodes = pa.schema([("id", pa.string())]), 40_000
    ends = pa.table({"vnode": pa.array(range(vnodes), pa.int32()), "id": [f"{end:01000}" for end in range(vnodes)]})
    with DuckDBProgressStore(tmp_path / "backfill.duckdb") as store:
        store.begin(StreamIdentity("1f0c9a77", "postgres", "system", "public.t", "1", key))
        with pytest.raises(StateError, match="start over with a smaller vnodeCount") as caught, as_ours():
            store.set_bounds(ends)
    assert "stateMemory" not in str(caught.value)
