"""Back-fills a table while it is written to, and proves that nothing was lost and nothing came twice."""

from __future__ import annotations

import os
import sys
import time
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from integration.database import Database, temporary_database
from integration.demo.pgbench import ROWS_PER_SCALE, TABLE, Pgbench
from integration.demo.proof import compare
from integration.demo.sink import Accounts
from integration.demo.watch import HEADER, Watch
from integration.program import program
from integration.servers import LocalServers
from integration.spark_session import configuration, spark_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SCALE: Final = 10
RATE: Final = 400
"""Transactions a second: enough to meet every batch, and leaves two cores for the rest."""

ROWS_PER_BATCH: Final = 80_000
SECONDS_AFTER: Final = 3
"""How long pgbench goes on when the whole table has been read."""

LOGGING: Final = """
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %m%n
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = error
"""
"""Spark says nothing but errors: this is about what the stream does."""


@contextmanager
def step(text: str) -> Iterator[None]:
    """Says what is being done, and how long it took."""
    print(f"{text} … ", end="", flush=True)
    began = time.monotonic()
    yield
    print(f"{time.monotonic() - began:.1f} s", flush=True)


def spark_settings(folder: Path) -> dict[str, str]:
    logging = folder / "log4j2.properties"
    logging.write_text(LOGGING)
    options = configuration(folder)["spark.driver.extraJavaOptions"]
    return {
        "spark.driver.extraJavaOptions": f'{options} -Dlog4j2.configurationFile="{logging}"',
        "spark.sql.adaptive.enabled": "false",
    }


def start_stream(spark: SparkSession, database: Database, accounts: Accounts, folder: Path) -> StreamingQuery:
    stream = (
        spark.readStream.format("backfill")
        .options(**database.options)
        .option("dbtable", TABLE)
        .option("stateDir", str(folder / "state"))
        .option("maxRowsPerTrigger", ROWS_PER_BATCH)
        .option("numPartitions", 2)
        .load()
    )
    writer = stream.writeStream.foreachBatch(accounts.apply)
    return writer.option("checkpointLocation", str(folder / "checkpoint")).start()


def back_fill(query: StreamingQuery, accounts: Accounts, pgbench: Pgbench) -> Watch:
    """Lets pgbench write until the table has been read, and a little longer; then waits until all of it has come."""
    watch = Watch(query, accounts)
    with pgbench.writing(scale=SCALE, rate=RATE):
        print(HEADER)
        while watch.backfilled_at is None or time.monotonic() < watch.backfilled_at + SECONDS_AFTER:
            watch.look()
            time.sleep(0.1)
    stopped = time.monotonic()
    query.processAllAvailable()
    caught_up = time.monotonic() - stopped
    watch.look()
    print(f"\npgbench has stopped. After another {caught_up:.1f} s the stream has delivered all that it did.")
    return watch


def follow(spark: SparkSession, pgbench: Pgbench, folder: Path) -> bool:
    """Runs and watches the stream; True if the sink came out equal to the table."""
    before = pgbench.changes()
    with closing(Accounts(folder / "sink.duckdb")) as accounts:
        query = start_stream(spark, pgbench.database, accounts, folder)
        try:
            watch = back_fill(query, accounts, pgbench)
        finally:
            query.stop()
        written = pgbench.changes() - before
        with step("PostgreSQL writes out the table, and DuckDB compares it with the sink"):
            found = compare(pgbench.database, accounts, folder)
        watch.tell(written, found)
        return found.equal


def forget_callbacks(spark: SparkSession) -> None:
    """Spark holds the function of foreachBatch until the process ends, and DuckDB complains of what is held then."""
    gateway = spark.sparkContext._gateway
    if gateway is not None:
        gateway.gateway_property.pool.clear()


def demo(folder: Path) -> bool:
    with LocalServers(os.environ) as servers:
        with step("Starting PostgreSQL"):
            server = servers.start({"autovacuum": "on"})
        with temporary_database(server) as database:
            pgbench = Pgbench(database, folder)
            with step(f"pgbench makes its table of {SCALE * ROWS_PER_SCALE:,} accounts"):
                pgbench.make_tables(SCALE)
            print("Starting Spark …", flush=True)
            with spark_session(folder, spark_settings(folder)) as spark:
                spark.sparkContext.setLogLevel("ERROR")
                print(f"The stream begins, and pgbench begins to write: {RATE} transactions a second.\n", flush=True)
                equal = follow(spark, pgbench, folder)
            forget_callbacks(spark)
            return equal


def main() -> int:
    began = time.monotonic()
    try:
        with program("demo") as folder:
            equal = demo(folder)
    except KeyboardInterrupt:
        print("\nstopped; nothing is left behind")
        return 130
    print(f"({time.monotonic() - began:.0f} s in all)")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
