"""A writer killed at any moment leaves the state of one whole barrier, and not an older one than it was told of."""

from __future__ import annotations

import random
from pathlib import Path

from backfill_state import DuckDBProgressStore
from tests.killed import run_and_kill
from tests.state_store.streams import rows_of

KILLS = 10
VNODES = 64

_WRITER = """
import sys
from backfill_state import DuckDBProgressStore
from tests.state_store.streams import barrier, stream
from tests.state_store.test_killed import VNODES

store = DuckDBProgressStore(sys.argv[1])
print(0, flush=True)
if store.identity() is None:
    store.begin(stream())
epoch = store.epoch() or 0
while True:
    epoch += 1
    store.commit(barrier(epoch, *((vnode, "eu", epoch, False, epoch) for vnode in range(VNODES))))
    print(epoch, flush=True)
    if epoch % 5 == 0:
        store.close()
"""


def test_a_writer_killed_at_any_moment_leaves_one_whole_barrier(tmp_path: Path) -> None:
    seed = 20260731
    moments = random.Random(seed)
    path = tmp_path / "progress.duckdb"
    reached = 0
    for kill in range(KILLS):
        # The first kills fall into the making of the file and of the stream, the later ones anywhere.
        after = moments.uniform(0, 0.05 if kill < 4 else 0.3)
        acknowledged = max(reached, run_and_kill(_WRITER, path, after, stores=kill == KILLS - 1))
        with DuckDBProgressStore(path) as store:
            reached, offset, rows = store.epoch() or 0, store.offset(), rows_of(store.progress())
        where = f"seed {seed}, kill {kill}"
        assert reached >= acknowledged, where
        assert offset == (f'{{"epoch":{reached}}}' if reached else None), where
        assert rows == [(vnode, "eu", reached, False, reached) for vnode in range(VNODES) if reached], where
    assert reached
