"""What `upsert-v2.duckdb.gz` holds: that of version 1, but with a text that is kept in pieces.

An older release has written it. The files are never edited nor made again.
"""

from __future__ import annotations

from backfill_state.upsert import Totals
from tests.upsert_state.golden.make_v1 import NOTHING, ROW, SIZES
from tests.upsert_state.upserts import Cells

LONG: Cells = ("é" * 300, *ROW[1:])
LONG_SIZE = SIZES[0] + 600 - len("eu é".encode())
ENTRIES = [
    (7, -1, True, LONG_SIZE, LONG),
    (8, 0, False, SIZES[1], NOTHING),
    (7, 0, True, SIZES[2], NOTHING),
]
TOTALS = Totals(2, 1, LONG_SIZE + SIZES[1] + SIZES[2])
