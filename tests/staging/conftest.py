from __future__ import annotations

from pathlib import Path

import pytest

from backfill.staging import Staging
from tests.staging.chunks import NAME


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "staging"


@pytest.fixture
def staging(folder: Path) -> Staging:
    return Staging(str(folder)).of_stream("s1")


@pytest.fixture
def file(folder: Path) -> Path:
    return folder / "s1" / "7" / NAME
