"""A writer killed at any moment leaves the state of one whole batch, and not an older one than it was told of."""

from __future__ import annotations

import random
from pathlib import Path

from backfill_state.upsert import DuckDBUpsertState, Totals
from tests.killed import run_and_kill
from tests.upsert_state.upserts import LAYOUT, entries

KILLS = 6
KEYS = 200
LINE = 16 + 10 + 1 + 8

_WRITER = """
import sys
from tests.upsert_state.test_killed import KEYS, state_at
from tests.upsert_state.upserts import updates

state = state_at(sys.argv[1])
print(0, flush=True)
number = int(state.token() or 0)
if number:
    # As after a crash: the last batch is given once more, and counts nothing.
    with state.batch(str(number)) as new:
        assert not new
        assert state.multi_put(updates((("eu", 0), number + 9, 0, None))).puts == 0
while True:
    number += 1
    with state.batch(str(number)):
        for half in (range(KEYS // 2), range(KEYS // 2, KEYS)):
            state.multi_put(updates(*((("eu", key), number, 0, ("x", float(number))) for key in half)))
    print(number, flush=True)
    if number % 5 == 0:
        state.close()
"""


def state_at(path: str | Path) -> DuckDBUpsertState:
    return DuckDBUpsertState(path, LAYOUT, segment_entries=3 * KEYS)


def test_a_writer_killed_at_any_moment_leaves_one_whole_batch(tmp_path: Path) -> None:
    seed = 20260731
    moments = random.Random(seed)
    path = tmp_path / "upsert.duckdb"
    reached = 0
    for kill in range(KILLS):
        # The first kills fall into the making of the file, the later ones anywhere.
        after = moments.uniform(0, 0.05 if kill < 2 else 0.6)
        acknowledged = max(reached, run_and_kill(_WRITER, path, after, stores=kill == KILLS - 1))
        where = f"seed {seed}, kill {kill}"
        with state_at(path) as state:
            reached = int(state.token() or 0)
            assert reached >= acknowledged, where
            assert state.totals() == (Totals(KEYS, 0, KEYS * LINE) if reached else Totals()), where
            found = {(entry[0], entry[-1]) for entry in entries(state, *(("eu", key) for key in range(KEYS)))}
            assert found == {(reached, ("x", float(reached))) if reached else (None, (None, None))}, where
    assert reached
