from __future__ import annotations

from pathlib import Path

import pytest

from backfill.sinks.delta import apply_to
from tests.sinks.batches import Apply


@pytest.fixture
def apply(tmp_path: Path) -> Apply:
    """Applies batches of the query `q` to the Delta table at `tmp_path`, by its key `(a, b)`."""
    return apply_to(path=str(tmp_path), key=["a", "b"], query="q")
