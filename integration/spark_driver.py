"""A driver of its own, for what a test cannot do to the session that all tests share.

    python -m integration.spark_driver '{"folder": …, "server": …, "database": …, "options": {…}, "trap": …}'

back-fills `t` as `integration.spark_stream` does, with a trap behind the reader:

none   nothing happens
late   each task fails when it has read everything and the snapshot has been released; then the table changes
early  each task's first attempt kills all Python workers while rows are still being read
hang   from the second batch on, tasks stop for ever at their first rows
full   from the second batch on, tasks stop for ever when they have read everything
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import psutil
import pyarrow as pa
import pyarrow.compute as pc

from backfill.rows import ORDINAL_BITS
from integration.database import Database
from integration.servers.external import ExternalServer
from integration.spark_session import spark_session
from integration.spark_stream import SparkStream, wait_for, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Sequences: TypeAlias = "Iterator[pa.Array[Any]]"
"""The column `_sequence` of what a task has read, batch by batch."""

Trap = Callable[[Path, Database, Sequences], Sequences]

MARKER = "trapped"
"""The file that says, in the driver's folder, that a task is in the trap."""

ATTEMPTS = 4


def none(_folder: Path, _database: Database, batches: Sequences) -> Sequences:
    yield from batches


def late(folder: Path, database: Database, batches: Sequences) -> Sequences:
    held = list(batches)
    if attempt() == 0:
        wait_for(lambda: not snapshots(database))
        if first(folder):
            write(database, 10)
        raise RuntimeError("the first attempt fails")
    yield from held


def early(folder: Path, _database: Database, batches: Sequences) -> Sequences:
    for batch in batches:
        if attempt() == 0:
            first(folder)
            for worker in psutil.Process(os.getppid()).children():
                worker.send_signal(signal.SIGKILL)
        yield batch


def hang(folder: Path, _database: Database, batches: Sequences) -> Sequences:
    for batch in batches:
        stop_after_first(folder, batch)
        yield batch


def full(folder: Path, _database: Database, batches: Sequences) -> Sequences:
    held = list(batches)
    for batch in held:
        stop_after_first(folder, batch)
    yield from held


TRAPS: dict[str, Trap] = {"none": none, "late": late, "early": early, "hang": hang, "full": full}


def attempt() -> int:
    from pyspark import TaskContext  # noqa: PLC0415 - only where it runs as a task

    context = TaskContext.get()
    assert context is not None
    return context.attemptNumber()


def first(folder: Path) -> bool:
    """Whether no task was here before."""
    try:
        (folder / MARKER).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def stop_after_first(folder: Path, batch: pa.Array[Any]) -> None:
    """Stops for ever at rows of the second batch or a later one."""
    number = pc.max(batch).as_py() >> ORDINAL_BITS
    if number > 1:
        first(folder)
        time.sleep(1000)


def snapshots(database: Database) -> int:
    """How many sessions hold a state of the database that has passed."""
    ((count,),) = database.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_xmin IS NOT NULL "
        "AND pid <> pg_backend_pid()"
    )
    return int(count)


def trapped(frame: DataFrame, folder: Path, database: Database, trap: Trap) -> DataFrame:
    from pyspark.sql.pandas.functions import ArrowUDFType, arrow_udf  # noqa: PLC0415 - reads the environment

    def behind(batches: Sequences) -> Sequences:
        return trap(folder, database, batches)

    return frame.withColumn("_sequence", arrow_udf(behind, "bigint", ArrowUDFType.SCALAR_ITER)("_sequence"))


def main(given: dict[str, Any]) -> None:
    folder = Path(given["folder"])
    database = Database(ExternalServer(given["server"]), given["database"])
    with spark_session(folder / "spark", {"spark.master": f"local[2,{ATTEMPTS}]"}) as spark:
        spark.sparkContext.setLogLevel("INFO")
        stream = SparkStream(spark, database, folder, given["options"])
        stream.catch_up(trapped(stream.load(), folder, database, TRAPS[given["trap"]]))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
