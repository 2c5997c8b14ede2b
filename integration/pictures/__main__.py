"""Back-fills a table of pgbench's while it is written to, and keeps pictures of two windows that show the progress."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from backfill.__main__ import main as backfill
from backfill.command.status import Status, status
from backfill.errors import StateError
from integration.database import Database, temporary_database
from integration.demo.__main__ import spark_settings
from integration.demo.pgbench import TABLE, Pgbench
from integration.pictures.terminal import Terminal, terminal
from integration.program import program
from integration.servers import LocalServers
from integration.spark_session import spark_session
from integration.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCS: Final = Path(__file__).parents[2] / "docs"
SCALE: Final = 10
RATE: Final = 200
NARROW, WIDE = 60, 140


@contextmanager
def streaming(spark: SparkSession, database: Database, folder: Path) -> Iterator[None]:
    """A stream over the table, in batches that leave time to look."""
    options = {"dbtable": TABLE, "stateDir": str(folder / "state"), "maxRowsPerTrigger": "25000", "numPartitions": "2"}
    stream = spark.readStream.format("backfill").options(**database.options, **options).load()
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(processingTime="2 seconds").start()
    try:
        yield
    finally:
        query.stop()


def wait_until(holds: Callable[[Status], bool], state: Path) -> None:
    def is_so() -> bool:
        try:
            return holds(status(state))
        except StateError:
            return False  # It has not begun yet.

    eventually(is_so, seconds=300, otherwise=lambda: f"the stream stands at {status(state)}")


def keep(shown: Terminal, name: str) -> None:
    time.sleep(2.5)  # The windows look once a second.
    (DOCS / f"{name}.svg").write_text(shown.picture("backfill status --watch"))
    print(f"--- {name}\n{shown.shown()}\x1b[0m")


def make(spark: SparkSession, database: Database, folder: Path) -> None:
    pgbench = Pgbench(database, folder)
    pgbench.make_tables(SCALE)
    state = folder / "state"
    command = [sys.executable, "-m", "backfill", "status", "--watch", "--state-dir", str(state)]
    command += ["--url", database.url(folder)]
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    with pgbench.writing(scale=SCALE, rate=RATE), streaming(spark, database, folder):
        wait_until(lambda of: of.barrier is not None, state)
        with terminal(command, environment, NARROW) as narrow, terminal(command, environment, WIDE) as wide:
            wait_until(lambda of: of.first.vnodes_completed > 110, state)
            keep(narrow, "status-narrow")
            keep(wide, "status-wide")
            backfill(["pause", "--state-dir", str(state)])
            time.sleep(5)
            keep(narrow, "status-paused")


def main() -> None:
    DOCS.mkdir(exist_ok=True)
    with (
        program("pictures") as folder,
        LocalServers(os.environ) as servers,
        temporary_database(servers.start()) as database,
        spark_session(folder, spark_settings(folder)) as spark,
    ):
        make(spark, database, folder)


if __name__ == "__main__":
    main()
