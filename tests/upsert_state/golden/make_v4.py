"""How `upsert-v4.duckdb.gz` and `upsert-schema-v4.sql` were made. The files are never edited nor made again.

    python -m tests.upsert_state.golden.make_v4 DIRECTORY

A later release writes another format; then this script only tells what the files hold: that of version 2, and a list of
numbers that is kept in pieces. (Version 3 holds just that of version 2.)
"""

from __future__ import annotations

import gzip
import sys
import tempfile
from pathlib import Path

import pyarrow as pa

from backfill_state.upsert import DuckDBUpsertState, Totals, UpsertLayout
from tests.upsert_state.golden import make_v1, make_v2
from tests.upsert_state.golden.make_v1 import BATCH, KEYS, SIZES, schema_of
from tests.upsert_state.upserts import Cells, put

LAYOUT = UpsertLayout(
    make_v1.LAYOUT.stream_id,
    make_v1.LAYOUT.key,
    make_v1.LAYOUT.row.append(pa.field("vector", pa.list_(pa.float32()))),
)
VECTOR = [at / 4 for at in range(200)]
LONG: Cells = (*make_v2.LONG, VECTOR)
SHORT: Cells = (*make_v1.NOTHING, [-0.0, None])
NOTHING: Cells = (None,) * len(LAYOUT.row)
ENTRIES = [
    (7, -1, True, make_v2.LONG_SIZE + 4 * len(VECTOR), LONG),
    (8, 0, False, SIZES[1], NOTHING),
    (7, 0, True, SIZES[2] + 4, SHORT),
]
TOTALS = Totals(2, 1, sum(entry[3] for entry in ENTRIES))


def make(path: Path) -> None:
    """Writes a state file with these contents."""
    with DuckDBUpsertState(path, LAYOUT) as state:
        put(state, "41", (KEYS[0], 6, 0, NOTHING), (KEYS[1], 7, 0, LONG))
        put(state, BATCH, (KEYS[0], 7, -1, LONG), (KEYS[1], 8, 0, None), (KEYS[2], 7, 0, SHORT))


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as place:
        made = Path(place) / "upsert.duckdb"
        make(made)
        # The file has blocks of 256 kB that are nearly empty.
        (directory / "upsert-v4.duckdb.gz").write_bytes(gzip.compress(made.read_bytes(), mtime=0))
        (directory / "upsert-schema-v4.sql").write_text(schema_of(made))
