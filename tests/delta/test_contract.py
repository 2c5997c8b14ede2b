"""Delta Lake keeps the laws of an upstream, with a key of two columns of which the first partitions the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.laws import GrowingUpstreamLaws, LosingUpstreamLaws, UpstreamLaws
from tests.delta.laboratory import DeltaLaboratory


@pytest.fixture
def laboratory(tmp_path: Path) -> DeltaLaboratory:
    return DeltaLaboratory(tmp_path / "table")


class TestDeltaUpstream(UpstreamLaws, LosingUpstreamLaws, GrowingUpstreamLaws):
    pass
