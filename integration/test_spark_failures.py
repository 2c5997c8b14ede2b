"""Tasks, workers and drivers that die cost nothing but time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from integration.database import Database
from integration.processes import kill
from integration.spark_driver import MARKER
from integration.spark_session import SOURCES
from integration.spark_stream import SparkStream, make_table, wait_for, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PASSWORD = "hunter2-secret"  # noqa: S105 - which the server does not ask for


@pytest.fixture
def stream(spark: SparkSession, database: Database, tmp_path: Path) -> SparkStream:
    return SparkStream(spark, database, tmp_path, {"numPartitions": "2", "password": PASSWORD})


@contextmanager
def driver(stream: SparkStream, trap: str) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that runs the stream; ends with the block, and everything below it."""
    given = {
        "folder": str(stream.folder),
        "server": stream.database.server.dsn,
        "database": stream.database.name,
        "options": dict(stream.options),
        "trap": trap,
    }
    with (stream.folder / "driver.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "integration.spark_driver", json.dumps(given)],
            cwd=SOURCES,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        kill(process)


def log_of(stream: SparkStream) -> str:
    return (stream.folder / "driver.log").read_text()


def test_a_failed_task_reads_what_it_had_staged(stream: SparkStream) -> None:
    """The snapshot has been released and the table has changed by the time it is run again."""
    make_table(stream.database, 50_000)
    with driver(replace(stream, options={**stream.options, "maxRowsPerTrigger": "45000"}), "late") as process:
        assert process.wait(timeout=200) == 0, log_of(stream)
    assert (stream.folder / MARKER).exists()
    stream.catch_up()
    stream.require_equal()
    log = log_of(stream)
    assert "INFO MicroBatchExecution" in log
    assert PASSWORD not in log


def test_killed_workers_are_replaced(stream: SparkStream) -> None:
    """In the middle of a chunk, which has then not been staged."""
    make_table(stream.database, 30_000)
    stream.database.execute("UPDATE t SET v = repeat(v, 150)")
    with driver(stream, "early") as process:
        assert process.wait(timeout=200) == 0, log_of(stream)
    assert (stream.folder / MARKER).exists()
    stream.require_equal()


def test_drivers_killed_in_mid_batch_are_replaced_by_others(stream: SparkStream) -> None:
    """The first one while rows are read, the second one when all have been read and staged."""
    make_table(stream.database, 1000)
    stream = replace(stream, options={**stream.options, "maxRowsPerTrigger": "400"})
    for trap in ("hang", "full"):
        with driver(stream, trap) as process:
            wait_for(lambda process=process: trapped(stream) or process.poll() is not None)  # type: ignore[misc]  # mypy/15459
            assert process.poll() is None, log_of(stream)
        assert (stream.checkpoint / "offsets" / "1").exists()
        assert not (stream.checkpoint / "commits" / "1").exists()
        (stream.folder / MARKER).unlink()
        write(stream.database, 10)
    stream.catch_up()
    stream.require_equal()


def trapped(stream: SparkStream) -> bool:
    return (stream.folder / MARKER).exists()
