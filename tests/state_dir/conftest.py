from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from backfill_state import DuckDBProgressStore, InMemoryProgressStore
from tests.state_dir.folder import Folder


@pytest.fixture(params=["memory", "duckdb"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    if request.param == "duckdb":
        return Folder(lambda: DuckDBProgressStore(tmp_path / "state.duckdb"))
    store = InMemoryProgressStore()
    return Folder(lambda: nullcontext(store))
