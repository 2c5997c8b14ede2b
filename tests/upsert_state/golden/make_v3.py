"""How `upsert-v3.duckdb.gz` and `upsert-schema-v3.sql` were made. The files are never edited nor made again.

    python -m tests.upsert_state.golden.make_v3 DIRECTORY

A later release writes another format; then this script only tells what the files hold: that of version 2.
"""

from __future__ import annotations

import gzip
import sys
import tempfile
from pathlib import Path

from backfill_state.upsert import DuckDBUpsertState
from tests.upsert_state.golden.make_v1 import BATCH, KEYS, LAYOUT, NOTHING, schema_of
from tests.upsert_state.golden.make_v2 import LONG
from tests.upsert_state.upserts import put


def make(path: Path) -> None:
    """Writes a state file with these contents."""
    with DuckDBUpsertState(path, LAYOUT) as state:
        put(state, "41", (KEYS[0], 6, 0, NOTHING), (KEYS[1], 7, 0, LONG))
        put(state, BATCH, (KEYS[0], 7, -1, LONG), (KEYS[1], 8, 0, None), (KEYS[2], 7, 0, NOTHING))


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as place:
        made = Path(place) / "upsert.duckdb"
        make(made)
        # A file has blocks of 256 kB, hardly anything of which is used.
        (directory / "upsert-v3.duckdb.gz").write_bytes(gzip.compress(made.read_bytes(), mtime=0))
        (directory / "upsert-schema-v3.sql").write_text(schema_of(made))
