"""I1 to I5 of the algorithm over random schedules: transactions, visibility, key changes, budgets, readers, crashes.

What holds at a barrier is in `tests.simulator.harness`, what may happen in `tests.simulator.schedule`.
BACKFILL_TEST_SCHEDULES says how many schedules there are in all; BACKFILL_TEST_SCHEDULE runs the one with that seed
again, and nothing beside it: `pytest tests/core/test_invariants.py -k with_crashes`.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random

import pytest

from tests.simulator import schedule
from tests.simulator.conditions import simulated
from tests.simulator.schedule import Schedule

SCHEDULES = int(os.environ.get("BACKFILL_TEST_SCHEDULES", "2000"))
ONLY = os.environ.get("BACKFILL_TEST_SCHEDULE")

SHARES: dict[Schedule, float] = {
    schedule.without_a_crash: 0.25,
    schedule.with_crashes: 0.25,
    schedule.with_pauses: 0.1,
    schedule.with_truncations: 0.1,
    schedule.with_full_images: 0.2,
    schedule.with_new_checkpoints: 0.15,
    schedule.of_changes_only: 0.05,
    schedule.taken_again: 0.15,
    schedule.of_a_snapshot_only: 0.1,
}
"""The kinds of schedules, and how much of all each is."""


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.mark.timeout(300 + SCHEDULES)
@pytest.mark.parametrize("kind", SHARES, ids=lambda kind: kind.__name__)
def test_every_barrier_shows_the_emitted_part_of_the_table_exactly(
    kind: Schedule, tmp_path: Path, processes: ProcessPoolExecutor
) -> None:
    if ONLY is not None:
        run(kind, int(ONLY), tmp_path)
        return
    seeds = range(max(1, round(SCHEDULES * SHARES[kind])))
    size = 1 + len(seeds) // 50
    chunks = [seeds[at : at + size] for at in range(0, len(seeds), size)]
    for done in [processes.submit(run_all, kind, chunk, tmp_path) for chunk in chunks]:
        done.result()


def run_all(kind: Schedule, seeds: range, folder: Path) -> None:
    for seed in seeds:
        run(kind, seed, folder / str(seed))
        shutil.rmtree(folder / str(seed), ignore_errors=True)


def run(kind: Schedule, seed: int, folder: Path) -> None:
    try:
        with simulated():
            kind(Random(seed), folder)
    except BaseException as error:
        error.add_note(f"BACKFILL_TEST_SCHEDULE={seed} pytest -k {kind.__name__} gives the same again")
        raise
