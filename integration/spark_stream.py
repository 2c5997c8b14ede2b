"""One stream as a user of Spark has it: a table, a checkpoint, a state directory and files that it writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from integration.database import Database
from integration.fold import Fold, Row
from integration.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

PATIENCE = 600.0
"""Seconds after which a test gives up waiting for what has to happen."""

TABLE = """
    CREATE TABLE t (id bigint PRIMARY KEY, v text, n numeric(12,2), at timestamptz);
    INSERT INTO t SELECT i, 'v' || i, i / 3.0, '2026-01-01 12:00Z'::timestamptz + i * interval '1 ms'
    FROM generate_series(1, {rows}) i;
    ANALYZE t;
"""

WRITE = """
    UPDATE t SET v = v || '+', n = n + 1 WHERE id % {step} = 1;
    DELETE FROM t WHERE id % {step} = 2;
    UPDATE t SET id = -id WHERE id % {step} = 3 AND id > 0 AND NOT EXISTS (SELECT FROM t o WHERE o.id = -t.id);
    INSERT INTO t SELECT max(id) + 1, 'new', 0, now() FROM t;
"""
"""All that can happen to rows: with a small step to many, with a large one to few."""


def make_table(database: Database, rows: int) -> None:
    """The table `t` with the keys from 1 to `rows`."""
    database.execute(TABLE.format(rows=rows))


def write(database: Database, step: int) -> None:
    database.execute(WRITE.format(step=step))


@dataclass
class SparkStream:
    """`folder` keeps the checkpoint, the state directory and what has come; several queries may run one by one."""

    spark: SparkSession
    database: Database
    folder: Path
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def load(self, **options: str) -> DataFrame:
        own = {"dbtable": "t", "stateDir": str(self.state), "vnodeCount": "16"}
        given = {**self.database.options, **own, **self.options, **options}
        return self.spark.readStream.format("backfill").options(**given).load()

    def start(self, trigger: Mapping[str, Any] | None = None, frame: DataFrame | None = None) -> StreamingQuery:
        """A query that writes Parquet files, with the default trigger unless one is given."""
        writer = (frame if frame is not None else self.load()).writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        if trigger is not None:
            writer = writer.trigger(**trigger)
        return writer.start(str(self.folder / "out"))

    @contextmanager
    def running(self, frame: DataFrame | None = None) -> Iterator[StreamingQuery]:
        query = self.start(frame=frame)
        try:
            yield query
        finally:
            query.stop()

    def catch_up(self, frame: DataFrame | None = None) -> list[StreamingQueryProgress]:
        """Runs until all that has happened up to now has come; returns the batches that brought rows."""
        query = self.start({"availableNow": True}, frame)
        query.awaitTermination()
        return batches(query)

    def rows(self) -> list[Row]:
        """All rows that have come, in no order. Reads what Spark's own log of the sink says was written."""
        found: list[Row] = self.spark.read.parquet(str(self.folder / "out")).toArrow().to_pylist()
        return found

    def fold(self) -> Fold:
        """What a consumer makes of the rows; fails on rows of which nobody could make sense."""
        fold = Fold(("id",))
        fold.apply(self.rows())
        return fold

    def require_equal(self, columns: str = "*") -> Fold:
        """Requires that the sink equals the table; returns the fold."""
        fold = self.fold()
        with (
            self.database.connect(options="-c timezone=UTC") as connection,
            connection.cursor(row_factory=psycopg.rows.dict_row) as cursor,
        ):
            table = cursor.execute(f"SELECT {columns} FROM t").fetchall()
        assert fold.rows == {(row["id"],): row for row in table}
        return fold


def batches(query: StreamingQuery) -> list[StreamingQueryProgress]:
    """The progress of the batches that brought rows."""
    return [progress for progress in query.recentProgress if progress.numInputRows]


def figures(progress: StreamingQueryProgress) -> dict[str, Any]:
    """What the source itself says of where it is."""
    found: dict[str, Any] = json.loads(progress.sources[0].latestOffset)
    return found


def wait_for(condition: Callable[[], bool], query: StreamingQuery | None = None) -> None:
    """Waits until the condition holds, and raises the query's error if it ends before."""

    def holds() -> bool:
        if condition():
            return True
        if query is not None and (error := query.exception()) is not None:
            raise error
        return False

    eventually(holds, seconds=PATIENCE, otherwise=lambda: f"the query stands at {query and query.lastProgress}")


def sessions(database: Database) -> int:
    """How many sessions, other than the one that asks, are open on the database."""
    ((count,),) = database.execute(
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
    )
    return int(count)


def slots(database: Database) -> list[str]:
    found = database.execute("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()")
    return [str(name) for (name,) in found]
