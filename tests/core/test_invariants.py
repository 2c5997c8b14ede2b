"""I1 to I5 of the algorithm over random schedules: transactions, visibility, key changes, budgets, readers, crashes.

What holds at a barrier is in `tests.simulator.harness`, what may happen in `tests.simulator.schedule`.
BACKFILL_TEST_SCHEDULES says how many schedules there are in all; BACKFILL_TEST_SCHEDULE runs the one with that seed
again, and nothing beside it: `pytest tests/core/test_invariants.py -k with_crashes`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.simulator import schedule
from tests.simulator.conditions import simulated
from tests.simulator.schedule import Schedule

SCHEDULES = int(os.environ.get("BACKFILL_TEST_SCHEDULES", "1700"))
ONLY = os.environ.get("BACKFILL_TEST_SCHEDULE")
TOGETHER = 50
"""How many schedules are one test, so that several processes of pytest may share them."""

SHARES: dict[Schedule, float] = {
    schedule.without_a_crash: 0.25,
    schedule.with_crashes: 0.25,
    schedule.with_pauses: 0.1,
    schedule.with_truncations: 0.07,
    schedule.with_full_images: 0.1,
    schedule.with_new_checkpoints: 0.15,
    schedule.of_changes_only: 0.05,
    schedule.taken_again: 0.07,
    schedule.of_a_snapshot_only: 0.15,
}
"""The kinds of schedules, each with its share of SCHEDULES."""

LOST_CHUNKS = {"AsPlanned", "ReadLater", "ahead"}
REACHED: dict[Schedule, set[str]] = {
    schedule.without_a_crash: {"AsPlanned"},
    schedule.with_crashes: LOST_CHUNKS,
    schedule.with_pauses: LOST_CHUNKS,
    schedule.with_truncations: LOST_CHUNKS,
    schedule.with_full_images: LOST_CHUNKS,
    schedule.with_new_checkpoints: LOST_CHUNKS | {"resumed"},
    schedule.of_changes_only: set(),
    schedule.taken_again: LOST_CHUNKS | {"GivenUp", "again", "resumed"},
    schedule.of_a_snapshot_only: {"AsPlanned", "ReadLater"},
}
"""What each test of `TOGETHER` schedules of a kind must meet: a case that none of them meets is not tested."""


def shares() -> Iterator[object]:
    """Yields each kind of schedule with some seeds for it."""
    for kind, share in SHARES.items():
        seeds = range(max(1, round(SCHEDULES * share))) if ONLY is None else range(int(ONLY), int(ONLY) + 1)
        for first in seeds[::TOGETHER]:
            some = range(first, min(first + TOGETHER, seeds.stop))
            yield pytest.param(kind, some, id=f"{kind.__name__} from {first}")


@pytest.mark.parametrize(("kind", "seeds"), tuple(shares()))
def test_every_barrier_shows_the_emitted_part_of_the_table_exactly(
    kind: Schedule, seeds: range, tmp_path: Path
) -> None:
    reached: set[str] = set()
    for seed in seeds:
        folder = tmp_path / str(seed)
        reached |= run(kind, seed, folder)
        shutil.rmtree(folder, ignore_errors=True)
    if len(seeds) == TOGETHER:
        assert reached == REACHED[kind]


def run(kind: Schedule, seed: int, folder: Path) -> set[str]:
    """Runs a schedule, and returns what it has reached."""
    try:
        with simulated():
            return kind(Random(seed), folder).reached
    except BaseException as error:
        error.add_note(f"BACKFILL_TEST_SCHEDULE={seed} pytest -k {kind.__name__} gives the same again")
        raise
