"""What lies in a state directory beside staged files: the stream's two databases, by name, and removing it all."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from backfill.state_dir import claim, control_file, counts_file
from backfill_state import DuckDBProgressStore

STATE_FILE: Final = "backfill.duckdb"
LAST_ROWS_FILE: Final = "upsert.duckdb"


def open_store(folder: Path) -> DuckDBProgressStore:
    """The state store in this folder, which has to exist."""
    return DuckDBProgressStore(folder / STATE_FILE)


def remove_files(folder: Path) -> None:
    """Removes all that a stream and its commands keep in a state directory but for staged files, and nothing else."""
    states = [f"{file}{log}" for file in (STATE_FILE, LAST_ROWS_FILE) for log in ("", ".wal")]
    for name in (*states, control_file.FILE, counts_file.FILE):
        (folder / name).unlink(missing_ok=True)
    # Here DuckDB puts what does not fit into memory. A query that was killed leaves it, for the next one to remove.
    shutil.rmtree(folder / f"{LAST_ROWS_FILE}.tmp", ignore_errors=True)
    # A query that was killed while it made a state file may have left a second name of it, or a part of another file.
    for name in (STATE_FILE, LAST_ROWS_FILE, control_file.FILE, counts_file.FILE):
        for left in folder.glob(f".{name}.*"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
    # Last, since the locks go with them: after that, what is here may be the next stream's.
    for name in (control_file.LOCK, claim.FILE):
        (folder / name).unlink(missing_ok=True)
