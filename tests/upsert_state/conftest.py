from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from backfill_state.upsert import DuckDBUpsertState, InMemoryUpsertState, UpsertState
from tests.upsert_state.upserts import LAYOUT


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a state's file; neither the file nor its folder is there yet."""
    return tmp_path / "state" / "upsert.duckdb"


@pytest.fixture(params=["memory", "duckdb", "duckdb in small pieces"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[UpsertState]:
    """Each kind of state; the last one also opens its file anew after each batch."""
    made: UpsertState
    match request.param:
        case "memory":
            made = InMemoryUpsertState(LAYOUT)
        case "duckdb":
            made = DuckDBUpsertState(tmp_path / "upsert.duckdb", LAYOUT)
        case _:
            made = _Reopened(tmp_path / "upsert.duckdb", LAYOUT, chunk_rows=2, segment_entries=4)
    with made:
        yield made


class _Reopened(DuckDBUpsertState):
    """Closes the file after each batch, so that all that is read comes from the disk."""

    @contextmanager
    def batch(self, token: str) -> Iterator[bool]:
        with super().batch(token) as new:
            yield new
        self.close()
