"""I2 over random schedules of two drivers of one query: the sink becomes the table, or a driver says that it cannot.

The lock on stateDir excludes such drivers, where they share that.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from backfill.errors import StagingError
from tests.simulator.conditions import simulated
from tests.simulator.database import Database
from tests.simulator.harness import Spark
from tests.simulator.two_drivers import Shared, driver, goes_on, stir
from tests.simulator.upstream import Server
from tests.simulator.writer import random_rows, reveal

MOST_TURNS = 3000


def schedule(random: Random, folder: Path) -> None:
    """Runs two drivers in turns; then one alone, until the sink is the table."""
    database, shared, vnodes = Database(random_rows(random, 60)), Shared(), random.choice([1, 2, 4])

    def start() -> Iterator[None]:
        spark = Spark(Server(database), folder, vnodes=vnodes, partitions=random.choice([1, 2, 5]))
        return driver(shared, spark, random)

    drivers = [start(), start()]
    for _ in range(random.choice([60, 120, 200])):
        stir(random, database)
        at = random.randrange(2)
        for _ in range(random.randrange(8)):
            if not goes_on(drivers[at]) or random.random() < 0.02:
                drivers[at] = start()
    reveal(random, database, chance=1)
    alone = start()
    for _ in range(MOST_TURNS):
        if not goes_on(alone):
            alone = start()
        if shared.committed and shared.sink.rows == database.latest():
            return
    raise AssertionError("the sink is not the table")


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_a_sink_is_right_or_a_driver_says_that_the_other_one_was_there(first: int, tmp_path: Path) -> None:
    found = set[bool]()
    with simulated():
        for seed in range(first, first + 20):
            try:
                schedule(Random(seed), tmp_path / str(seed))
            except StagingError:
                found.add(False)
            else:
                found.add(True)
    assert found == {True, False}
