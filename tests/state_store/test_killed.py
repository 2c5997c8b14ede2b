"""A writer killed at any moment leaves the state of one whole barrier, and not an older one than it was told of."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

from backfill_state import DuckDBProgressStore
from tests.state_store.streams import rows_of

KILLS = 10
VNODES = 64

_WRITER = """
import sys
from backfill_state import DuckDBProgressStore
from tests.state_store.streams import barrier, stream
from tests.state_store.test_killed import VNODES

store = DuckDBProgressStore(sys.argv[1])
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
        # The first kills fall into the making of the file and the first barriers, the later ones anywhere.
        acknowledged = max(reached, run_and_kill(path, moments.uniform(0, 0.02 if kill < 3 else 0.15)))
        with DuckDBProgressStore(path) as store:
            epoch, rows = store.epoch(), rows_of(store.progress())
            assert epoch is not None, f"seed {seed}, kill {kill}"
            assert epoch >= acknowledged, f"seed {seed}, kill {kill}"
            assert store.offset() == f'{{"epoch":{epoch}}}'
        assert rows == [(vnode, "eu", epoch, False, epoch) for vnode in range(VNODES)], f"seed {seed}, kill {kill}"
        reached = epoch
    assert reached >= KILLS


def run_and_kill(path: Path, after: float) -> int:
    """Lets a writer run on for so many seconds after its first barrier; the last epoch it said was stored."""
    with subprocess.Popen([sys.executable, "-c", _WRITER, path], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        first = writer.stdout.readline()
        time.sleep(after)
        writer.kill()
        rest = writer.stdout.read()
    # The kill may have cut the last line short.
    whole = [line for line in (first + rest).splitlines(keepends=True) if line.endswith("\n")]
    return int(whole[-1])
