"""A real Spark is killed, whole or in parts; its sink, transactional by batch id, is exact all the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from integration.crash.killing import Strike
from integration.crash.lives import SMALL
from integration.crash.load import Load
from integration.crash.spark_lives import SparkLives
from integration.database import Database, temporary_database
from integration.servers import LocalServer
from integration.writers import BIGINT

SIZE = 600

SPECULATIVE = {
    "spark.executor.memory": "512m",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "500ms",
}

StartSpark = Callable[..., SparkLives]


@pytest.fixture
def start_lives(tmp_path: Path) -> Iterator[StartSpark]:
    """Makes a stream for Sparks to live on; none of them outlives the test."""
    made: list[SparkLives] = []

    def start(database: Database, **options: Any) -> SparkLives:
        BIGINT.create(database, SIZE, identity="FULL")
        lives = SparkLives(database, tmp_path, BIGINT, settings=SMALL, vnodeCount="3", numPartitions="3", **options)
        made.append(lives)
        return lives

    yield start
    for lives in made:
        lives.kill()


@pytest.mark.spark
def test_all_of_spark_dies_at_one_step_after_the_other(
    database: Database, start_lives: StartSpark, rng: Random
) -> None:
    lives = start_lives(database, maxRowsPerTrigger="100")
    with Load(database, BIGINT, SIZE, rng, pause=0.2):
        lives.die_at("offset logged", nth=2)
        lives.die_at("sink written", nth=2)  # before Spark logs the commit
        lives.die_at("state about to be written", nth=2)  # after it has, and before the slot is told
    lives.options["maxRowsPerTrigger"] = "10000"
    lives.start()
    lives.live()
    lives.require_exact()
    assert lives.sink.require_equal_attempts() >= 1


@pytest.mark.spark
def test_single_processes_of_spark_and_the_database_die(
    start_postgres: Callable[[], LocalServer], start_lives: StartSpark, rng: Random, tmp_path: Path
) -> None:
    server = start_postgres()
    with temporary_database(server) as database:
        lives = start_lives(database, maxRowsPerTrigger="100")
        strikes = (
            Strike("in the middle of a chunk", 1, "process"),  # a Python worker; its task is tried again
            Strike("chunk staged", 2, "process"),
            Strike("partitions made", 2, "process"),  # the stream's runner; the query is started again
            Strike("offset about to be logged", 2, "process"),
        )
        with Load(database, BIGINT, SIZE, rng, pause=0.2):
            lives.start(*strikes, queries=8, gate=tmp_path / "gate")
            lives.wait_for(3)
            server.kill()
            time.sleep(0.5)
            server.start()
            lives.wait_for(4)
        (tmp_path / "gate").touch()
        lives.live()
        lives.require_exact()


@pytest.mark.spark
def test_a_speculative_copy_of_a_task_adds_no_row_and_the_snapshot_is_let_go_before_the_next_trigger(
    database: Database, start_lives: StartSpark
) -> None:
    lives = start_lives(database)
    slow = Strike("chunk about to be read", 1, "sleep", seconds=60.0)
    held = "SELECT pid, state, query FROM pg_stat_activity WHERE datname = current_database() AND xact_start < now()"
    with lives.on_cluster(slow, spark=SPECULATIVE, trigger={"processingTime": "10 minutes"}):
        lives.wait_for(1)
        lives.wait_for_commit(0)
        assert lives.committed_at(0) - lives.struck_at() < slow.seconds, "the slow task was waited for"
        deadline = time.monotonic() + 5
        while open_now := database.execute(held):
            assert time.monotonic() < deadline, f"open while Spark waits for its trigger: {open_now}"
        lives.require_exact()
