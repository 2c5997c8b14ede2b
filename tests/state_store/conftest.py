from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from backfill_state import Barrier, DuckDBProgressStore, InMemoryProgressStore, ProgressStore, StreamIdentity


@pytest.fixture(params=["memory", "duckdb", "duckdb reopened"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ProgressStore]:
    """Each kind of store; `reopened` opens its file anew after each change."""
    made: ProgressStore
    match request.param:
        case "memory":
            made = InMemoryProgressStore()
        case "duckdb":
            made = DuckDBProgressStore(tmp_path / "progress.duckdb")
        case _:
            made = _Reopened(tmp_path / "progress.duckdb")
    with made:
        yield made


class _Reopened(DuckDBProgressStore):
    """Closes the file as soon as something was stored, so that all that is read comes from the disk."""

    def begin(self, identity: StreamIdentity) -> None:
        super().begin(identity)
        self.close()

    def set_bounds(self, bounds: pa.Table) -> None:
        super().set_bounds(bounds)
        self.close()

    def commit(self, barrier: Barrier) -> None:
        super().commit(barrier)
        self.close()

    def rebuild(self, identity: StreamIdentity, bounds: pa.Table, barrier: Barrier) -> None:
        super().rebuild(identity, bounds, barrier)
        self.close()

    def reset(self) -> None:
        super().reset()
        self.close()
