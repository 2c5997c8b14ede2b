"""What a file of the state directory says is passed on with the options that mend it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from backfill.errors import StateError
from backfill.state_errors import as_ours
from backfill_state.upsert import DuckDBUpsertState, UpsertLayout


def test_last_rows_that_are_damaged_are_not_said_to_be_rebuilt(tmp_path: Path) -> None:
    path = tmp_path / "upsert.duckdb"
    path.write_bytes(b"not a database")
    layout = UpsertLayout("1f0c9a77", pa.schema([("id", pa.int64())]), pa.schema([("n", pa.int64())]))
    with pytest.raises(StateError, match=r"does not suffice.*delete it.*onExistingState=restart\)$"), as_ours():
        DuckDBUpsertState(path, layout).totals()
