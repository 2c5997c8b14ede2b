"""A real Spark is killed, whole or in parts; its sink, transactional by batch id, is exact all the same."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from integration.crash.killing import Strike
from integration.crash.lives import SMALL
from integration.crash.load import Load
from integration.crash.spark_lives import PATIENCE, SparkLives
from integration.database import Database, temporary_database
from integration.servers import LocalServer
from integration.waiting import eventually
from integration.writers import BIGINT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIZE = 600
PASSWORD = "hunter2-secret"  # noqa: S105 - which the server does not ask for

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
        BIGINT.create(database, SIZE, identity="DEFAULT" if "changelog" in options else "FULL")
        lives = SparkLives(database, tmp_path, BIGINT, settings=SMALL, vnodeCount="3", numPartitions="3", **options)
        made.append(lives)
        return lives

    yield start
    for lives in made:
        lives.kill()


@pytest.mark.spark
def test_all_of_spark_dies_at_one_step_after_the_other(
    database: Database, spark: SparkSession, start_lives: StartSpark, rng: Random
) -> None:
    lives = start_lives(database, maxRowsPerTrigger="100", changelog="full")
    with Load(database, BIGINT, SIZE, rng, pause=0.2):
        lives.die_at("last rows committed", nth=2)
        lives.die_at("sink written", nth=2)  # before Spark logs the commit
        lives.die_at("state about to be written", nth=2)  # after it has, and before the slot is told
    lives.options["maxRowsPerTrigger"] = "10000"
    lives.live_in(spark)
    lives.require_exact()
    assert lives.sink.require_equal_attempts() >= 1


@pytest.mark.spark
def test_single_processes_of_spark_and_the_database_die(
    start_postgres: Callable[[], LocalServer], start_lives: StartSpark, rng: Random, tmp_path: Path
) -> None:
    """Nothing that the log or an error says about all this names the password."""
    server = start_postgres()
    with temporary_database(server) as database:
        lives = start_lives(database, maxRowsPerTrigger="100", password=PASSWORD)
        strikes = (
            Strike("in the middle of a chunk", 1, "process"),  # a Python worker; its task is tried again
            Strike("chunk staged", 2, "process"),
            Strike("partitions made", 2, "process"),  # the stream's runner; the query is started again
            Strike("offset about to be logged", 2, "process"),
        )
        with Load(database, BIGINT, SIZE, rng, pause=0.2):
            lives.start(*strikes, queries=8, gate=tmp_path / "gate", log_level="INFO")
            lives.wait_for(3)
            server.kill()
            time.sleep(0.5)
            server.start()
            lives.wait_for(4)
        (tmp_path / "gate").touch()
        lives.live()
        lives.require_exact()
    log = lives.output.read_text(errors="replace")
    assert "INFO MicroBatchExecution" in log
    assert re.search("WARN TaskSetManager: .*Lost task", log)
    assert PASSWORD not in log


@pytest.mark.spark
def test_a_speculative_copy_of_a_task_adds_no_row_and_the_snapshot_is_let_go_before_the_next_trigger(
    database: Database, start_lives: StartSpark
) -> None:
    lives = start_lives(database)
    held = "SELECT pid, state, query FROM pg_stat_activity WHERE datname = current_database() AND xact_start < now()"
    never = Strike("chunk about to be read", 1, "wait")
    with lives.on_cluster(never, spark=SPECULATIVE, trigger={"processingTime": "1 hour"}):
        lives.wait_for_commit(0)
        assert lives.struck
        eventually(
            lambda: not database.execute(held),
            seconds=PATIENCE,
            otherwise=lambda: f"open while Spark waits for its trigger: {database.execute(held)}",
        )
        lives.require_exact()
