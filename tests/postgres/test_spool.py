"""Changes that are kept until the batch is planned."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pytest

from backfill.errors import StagingError
from backfill.upstream.postgres.spool import IN_MEMORY, Spool


def test_a_temporary_folder_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    monkeypatch.setattr(tempfile, "tempdir", str(gone))
    large = pa.record_batch({"v": pa.array(["x" * (IN_MEMORY + 1)])})
    spool = Spool(large.schema)
    with pytest.raises(StagingError, match=f"{gone}.*TMPDIR"):
        spool.add(large)
    spool.close()
