"""How `upsert-v2.duckdb.gz` and `upsert-schema-v2.sql` were made. The files are never edited nor made again.

    python -m tests.upsert_state.golden.make_v2 DIRECTORY

A later release writes another format; then this script only tells what the files hold: that of version 1, but with a
text that is kept in pieces.
"""

from __future__ import annotations

import gzip
import sys
import tempfile
from pathlib import Path

from backfill_state.upsert import DuckDBUpsertState, Totals
from tests.upsert_state.golden.make_v1 import BATCH, KEYS, LAYOUT, NOTHING, ROW, SIZES, schema_of
from tests.upsert_state.upserts import Cells, put

LONG: Cells = ("é" * 300, *ROW[1:])
LONG_SIZE = SIZES[0] + 600 - len("eu é".encode())
ENTRIES = [
    (7, -1, True, LONG_SIZE, LONG),
    (8, 0, False, SIZES[1], NOTHING),
    (7, 0, True, SIZES[2], NOTHING),
]
TOTALS = Totals(2, 1, LONG_SIZE + SIZES[1] + SIZES[2])


def make(path: Path) -> None:
    """Writes a state file with the contents above."""
    with DuckDBUpsertState(path, LAYOUT) as state:
        put(state, "41", (KEYS[0], 6, 0, NOTHING), (KEYS[1], 7, 0, LONG))
        put(state, BATCH, (KEYS[0], 7, -1, LONG), (KEYS[1], 8, 0, None), (KEYS[2], 7, 0, NOTHING))


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as place:
        made = Path(place) / "upsert.duckdb"
        make(made)
        # A file has blocks of 256 kB, hardly anything of which is used.
        (directory / "upsert-v2.duckdb.gz").write_bytes(gzip.compress(made.read_bytes(), mtime=0))
        (directory / "upsert-schema-v2.sql").write_text(schema_of(made))
