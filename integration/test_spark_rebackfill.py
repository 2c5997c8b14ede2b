"""`backfill re-backfill` beside a query that runs, as a user has it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from backfill.command.status import Status, status
from integration.database import Database
from integration.fold import Fold
from integration.spark_stream import SparkStream, batches, figures, make_table, wait_for, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 300


@pytest.fixture
def stream(spark: SparkSession, database: Database, tmp_path: Path) -> SparkStream:
    make_table(database, ROWS)
    return SparkStream(spark, database, tmp_path, {"maxRowsPerTrigger": "50", "numPartitions": "2"})


def tell(stream: SparkStream, *words: str) -> str:
    command = [sys.executable, "-m", "backfill", *words, "--state-dir", str(stream.state)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def now(stream: SparkStream) -> Status:
    return status(stream.state)


def folded(stream: SparkStream) -> Fold:
    """The rows as a consumer has them that takes the last one for each key."""
    fold = Fold(("id",), supersedes=True)
    fold.apply(stream.rows())
    return fold


def times_read(stream: SparkStream) -> dict[int, int]:
    times: dict[int, int] = {}
    for row in stream.rows():
        times[row["id"]] = times.get(row["id"], 0) + row["_is_snapshot"]
    return times


def test_a_range_is_read_again_while_the_query_runs_and_the_whole_table_by_one_that_is_started_later(
    stream: SparkStream,
) -> None:
    with stream.running() as query:
        wait_for(lambda: any(figures(done)["phase"] == "changes" for done in batches(query)), query)
        stream.database.execute("UPDATE t SET v = 'later' WHERE id = 7")
        query.processAllAvailable()
        output = tell(stream, "re-backfill", "--from", "100", "--to", "219")
        assert output.endswith("the rows from 100 to 219 are read again from the next batch on\n")
        write(stream.database, 10)
        wait_for(lambda: now(stream).again is not None, query)
        wait_for(lambda: now(stream).phase == "changes", query)
        query.processAllAvailable()
    reports = [figures(done) for done in batches(query)]
    again = [item["again_rows"] for item in reports if "again_rows" in item]
    assert again == sorted(again)
    assert 96 <= again[-1] <= 120, "some were deleted or moved meanwhile, or a little later"
    assert folded(stream).rows == table(stream)
    read = times_read(stream)
    twice = {key for key, count in read.items() if count == 2}
    assert twice <= set(range(100, 220))
    assert len(twice) == again[-1]

    output = tell(stream, "re-backfill")
    assert "all rows are read again from the next batch on" in output
    assert now(stream).waiting == 1
    stream.catch_up()
    assert folded(stream).rows == table(stream)
    read = times_read(stream)
    assert all(read[key] == (3 if key in twice else 2) for (key,) in table(stream) if 0 < key <= ROWS)
    assert stream.catch_up() == []


def table(stream: SparkStream) -> dict[tuple[int], dict[str, Any]]:
    names = ("id", "v", "n", "at")
    with stream.database.connect(options="-c timezone=UTC") as connection:
        found = connection.execute("SELECT id, v, n, at FROM t").fetchall()
    return {(row[0],): dict(zip(names, row, strict=True)) for row in found}
