"""The table that most scenarios begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.delta.tables import created


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table `(id, v)` with ten rows."""
    return created(tmp_path / "table")
