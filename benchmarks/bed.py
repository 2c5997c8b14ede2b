"""What is measured on: a PostgreSQL of this machine, reached over TCP, and a warm Spark on two cores."""

from __future__ import annotations

import itertools
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import sql

from benchmarks.rounds import Run
from integration.database import Database, temporary_database
from integration.program import program
from integration.servers import LocalServer, LocalServers
from integration.spark_session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ACCOUNTS: Final = "public.pgbench_accounts"
"""aid int primary key, bid int, abalance int, filler char(84): about 130 bytes a row on disk."""

ORDERS: Final = "public.orders"
"""What a shop might have: ten columns of eight types, about 150 bytes a row."""

ORDERS_DDL: Final = f"""
    DROP TABLE IF EXISTS {ORDERS};
    CREATE TABLE {ORDERS} (
        order_id bigint PRIMARY KEY, customer uuid NOT NULL, status text NOT NULL, amount numeric(12, 2) NOT NULL,
        discount double precision, items integer NOT NULL, paid boolean NOT NULL, due date,
        placed timestamptz NOT NULL, note text
    )"""

ORDERS_ROWS: Final = f"""
    INSERT INTO {ORDERS}
    SELECT i, md5(i::text)::uuid, (ARRAY['new', 'paid', 'packed', 'sent', 'returned'])[1 + i %% 5],
        (i %% 9999999) / 100.0, CASE WHEN i %% 4 = 0 THEN i %% 50 / 100.0 END, i %% 9 + 1, i %% 3 > 0,
        CASE WHEN i %% 5 > 0 THEN date '2020-01-01' + (i %% 2000)::integer END,
        timestamptz '2020-01-01' + i * interval '77 milliseconds',
        CASE WHEN i %% 3 > 0 THEN repeat(md5((i %% 1000)::text), (1 + i %% 4)::integer) END
    FROM generate_series(1, %s::bigint) AS i"""

WIDE: Final = "public.readings"
"""What a laboratory might have: an integer as the key, and WIDE_COLUMNS more columns of integers."""

WIDE_COLUMNS: Final = 449
"""With so many columns a row takes just more memory than a new session's allocator keeps."""

PASSAGES: Final = "public.passages"
"""What a search by meaning might have: a text of 90 bytes and its vector."""

PASSAGES_DDL: Final = f"""
    DROP TABLE IF EXISTS {PASSAGES};
    CREATE TABLE {PASSAGES} (id bigint PRIMARY KEY, passage text NOT NULL, vector real[] NOT NULL)"""

VECTOR_LENGTH: Final = 768

PASSAGES_ROWS: Final = f"""
    INSERT INTO {PASSAGES}
    SELECT i, repeat(md5(i::text), 3), ARRAY(SELECT random() + 0 * i FROM generate_series(1, {VECTOR_LENGTH}))
    FROM generate_series(1, %s::bigint) AS i"""

ROWS_PER_SCALE: Final = 100_000

JDBC_DRIVER: Final = Path("/usr/share/java/postgresql.jar")
"""Where Debian's package libpostgresql-jdbc-java puts the driver."""

SETTINGS: Final = {
    # Neither vacuum nor checkpoints are to work in one contender's time for the rows of another.
    "autovacuum": "off",
    "checkpoint_timeout": "1d",
    "max_wal_size": "32GB",
    "shared_buffers": "1GB",
}

SPARK_SETTINGS: Final = {"spark.jars": str(JDBC_DRIVER)} if JDBC_DRIVER.exists() else {}

PATIENCE: Final = 10.0
"""Seconds for a query that has ended to let go of its slot."""


@dataclass
class Bed:
    """A database with room for files beside it; Spark starts when it is first asked for."""

    server: LocalServer
    database: Database
    folder: Path
    java: str
    """Options for Spark's JVM, as on a command line."""

    _stack: ExitStack
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @cached_property
    def spark(self) -> SparkSession:
        settings = {**SPARK_SETTINGS, "spark.driver.defaultJavaOptions": self.java}
        session = self._stack.enter_context(spark_session(self.folder, settings))
        session.sparkContext.setLogLevel("ERROR")
        return session

    def fresh_folder(self) -> Path:
        """A new, empty folder; all of them are removed when the measuring ends."""
        path = self.folder / f"run-{next(self._numbers)}"
        path.mkdir()
        return path

    def fill(self, rows: int) -> int:
        """Makes pgbench's tables anew, with about `rows` accounts; returns how many there are."""
        scale = max(1, round(rows / ROWS_PER_SCALE))
        self._program("pgbench", "--initialize", "--quiet", f"--scale={scale}", self.database.dsn)
        self.database.execute("CHECKPOINT")
        return scale * ROWS_PER_SCALE

    def fill_orders(self, rows: int) -> int:
        """Makes the table of orders anew, with so many rows."""
        self.database.execute(ORDERS_DDL)
        self.database.execute(ORDERS_ROWS, [rows])
        self._settle(ORDERS)
        return rows

    def fill_passages(self, rows: int) -> int:
        """Makes the table of passages anew, with so many rows."""
        self.database.execute(PASSAGES_DDL)
        self.database.execute(PASSAGES_ROWS, [rows])
        self._settle(PASSAGES)
        return rows

    def fill_wide(self, rows: int) -> int:
        """Makes the table of readings anew, with so many rows."""
        values = sql.SQL(", ").join(
            sql.SQL("i + {} AS {}").format(sql.Literal(at), sql.Identifier(f"reading_{at}"))
            for at in range(WIDE_COLUMNS)
        )
        made = sql.SQL("CREATE TABLE {} AS SELECT i AS id, {} FROM generate_series(1, {}::integer) AS i")
        table = sql.Identifier(*WIDE.split("."))
        self.database.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(table).as_string(None))
        self.database.execute(made.format(table, values, sql.Literal(rows)).as_string(None))
        self.database.execute(sql.SQL("ALTER TABLE {} ADD PRIMARY KEY (id)").format(table).as_string(None))
        self._settle(WIDE)
        return rows

    def _settle(self, table: str) -> None:
        """Does what the server would otherwise do to a new table while it is measured."""
        self.database.execute(f"VACUUM ANALYZE {table}")
        self.database.execute("CHECKPOINT")

    def psql(self, command: str, rows: int) -> Run:
        """Runs a command whose output nobody reads; `rows` is how many rows or changes it gives."""
        began = time.perf_counter()
        options = ("--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1")
        self._program("psql", *options, "--command", command, self.database.dsn)
        return Run(rows, time.perf_counter() - began)

    def _program(self, name: str, *arguments: str) -> None:
        command = [str(self.server.bin(name)), *arguments]
        done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{name} ended with {done.returncode}: {done.stderr.strip()}")

    @cached_property
    def jdbc_url(self) -> str:
        given = psycopg.conninfo.conninfo_to_dict(self.database.dsn)
        return f"jdbc:postgresql://{given['host']}:{given['port']}/{given['dbname']}?user={given['user']}"

    def drop_slot(self, name: str) -> None:
        """Drops a replication slot as soon as nobody uses it; nothing happens where there is none."""
        give_up = time.monotonic() + PATIENCE
        while True:
            try:
                self.database.execute(
                    "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", [name]
                )
            except psycopg.errors.ObjectInUse:
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.05)
            else:
                return

    def publish(self, publication: str, table: str) -> None:
        """Makes the publication anew, of this table alone."""
        name = sql.Identifier(publication).as_string(None)
        self.database.execute(f"DROP PUBLICATION IF EXISTS {name}; CREATE PUBLICATION {name} FOR TABLE {table}")


@contextmanager
def bed(java: str) -> Iterator[Bed]:
    """A server that is started for this alone, with a database; all of it is removed when the block ends."""
    with ExitStack() as stack:
        folder = stack.enter_context(program("bench"))
        server = stack.enter_context(LocalServers(os.environ)).start(SETTINGS)
        database = stack.enter_context(temporary_database(server))
        yield Bed(server, database, folder, java, stack)
