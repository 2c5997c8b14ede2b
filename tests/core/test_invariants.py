"""I1 to I4 of the algorithm over random schedules: transactions, visibility, key changes, budgets, readers, crashes."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from backfill.progress import Finished
from tests.simulator.database import Database
from tests.simulator.harness import Spark
from tests.simulator.writer import random_rows, reveal, write

SCHEDULES = int(os.environ.get("BACKFILL_TEST_SCHEDULES", "300"))
GROUPS = 10


def _spark(random: Random, folder: Path) -> Spark:
    database = Database(initial=random_rows(random, random.choice([0, 1, 5, 40, 90])))
    return Spark(
        database,
        folder,
        vnodes=random.choice([1, 2, 3, 8, 40]),
        partitions=random.choice([1, 2, 5]),
        full_identity=random.random() < 0.5,
    )


def _quiet_down(spark: Spark) -> None:
    """Everything becomes visible, and the stream reads until nothing is left."""
    for entry in spark.database.log:
        entry.visible = True
    for _ in range(1000):
        if not spark.batch(50):
            break
        spark.check()
    assert isinstance(spark.barrier().progress, Finished) or not spark.barrier().progress.unfinished
    assert spark.sink.rows == spark.database.latest()


@pytest.mark.parametrize("group", range(GROUPS))
def test_every_barrier_shows_the_emitted_part_of_the_table_exactly(group: int, tmp_path: Path) -> None:
    for schedule in range(SCHEDULES // GROUPS):
        seed = group * 1_000_003 + schedule
        random = Random(seed)
        spark = _spark(random, tmp_path / str(seed))
        try:
            for _ in range(random.randrange(5, 40)):
                for _ in range(random.choice([0, 0, 1, 3])):
                    write(random, spark.database)
                reveal(random, spark.database)
                spark.partitions = random.choice([1, 2, 5])
                spark.batch(random.choice([1, 3, 10, None]))
                spark.check()
            _quiet_down(spark)
        except BaseException:
            print(f"seed {seed}")  # noqa: T201 - what one needs to see the failure again
            raise


@pytest.mark.parametrize("group", range(GROUPS))
def test_crashes_at_any_moment_lose_nothing_and_repeat_nothing(group: int, tmp_path: Path) -> None:
    for schedule in range(SCHEDULES // GROUPS):
        seed = group * 1_000_003 + schedule + 500_000
        random = Random(seed)
        spark = _spark(random, tmp_path / str(seed))
        try:
            for _ in range(random.randrange(5, 40)):
                for _ in range(random.choice([0, 0, 1, 3])):
                    write(random, spark.database)
                reveal(random, spark.database)
                _batch_with_crashes(random, spark)
            _quiet_down(spark)
        except BaseException:
            print(f"seed {seed}")  # noqa: T201 - what one needs to see the failure again
            raise


def _batch_with_crashes(random: Random, spark: Spark) -> None:
    if not spark.plan(random.choice([1, 3, 10, None])):
        return
    while random.random() < 0.3:
        if random.random() < 0.5:
            spark.read(only=random.randrange(4))
        spark.crash()
        write(random, spark.database)
        reveal(random, spark.database)
        spark.partitions = random.choice([1, 2, 5])
    rows = spark.read()
    if random.random() < 0.3:
        # The sink has the batch, Spark's commit log has not: run again, the batch gives the same rows.
        if random.random() < 0.5:
            spark.sink.commit(spark.committed, rows)
        spark.crash()
        write(random, spark.database)
        again = spark.read()
        assert sorted(map(str, again)) == sorted(map(str, rows))
    spark.finish(rows)
    if random.random() < 0.2:
        spark.crash()
