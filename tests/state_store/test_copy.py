"""An error in copying a state file says whether the file or the copy is at fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from backfill_state import duckdb_copy
from backfill_state.errors import StateUnwritableError


def test_a_file_that_cannot_be_read_is_not_reported_as_a_full_temporary_folder(tmp_path: Path) -> None:
    memory = Path("/proc/self/mem")  # It can be opened; reading its first page fails with EIO.
    with pytest.raises(StateUnwritableError, match=str(memory)) as caught:
        duckdb_copy._copy_file(memory, tmp_path / "copy")
    assert "temporary folder" not in str(caught.value)
