"""A whole Spark in a process of its own, to be killed: `foreachBatch` writes to a `Sink`.

    python -m integration.crash.spark_driver JOB

where JOB is the JSON of a `SparkJob`. The steps of `killing` are in the environment, so that the stream's runner and
the Python workers have them as well. `spark_lives.SparkLives` starts it.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from integration.crash import killing
from integration.crash.sink import Sink
from integration.spark_session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SITE = str(Path(__file__).parent / "site")

MAY_BE_STARTED_AGAIN = re.compile(r"SnapshotGoneError|ConnectionLostError|terminated with exception:\s+SQLSTATE")
"""Errors that pass, and the empty message that Spark has when the stream's runner has died."""


@dataclass(frozen=True)
class SparkJob:
    """What a Spark driver is told."""

    folder: str
    options: Mapping[str, str]
    checkpoint: str
    sink: str
    key: tuple[str, ...]
    trigger: Mapping[str, str | bool]
    spark: Mapping[str, str] = field(default_factory=dict)
    log_level: str = "WARN"
    queries: int = 1
    """How many queries may be started: one that fails by a transient error is followed by another."""

    gate: str = ""
    """If not empty: a file after whose appearance all that is there is read once more."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> SparkJob:
        value = json.loads(text)
        return cls(**{**value, "key": tuple(value["key"])})


def start(session: SparkSession, job: SparkJob) -> StreamingQuery:
    sink = Sink(Path(job.sink), job.key)

    def write(batch: DataFrame, number: int) -> None:
        sink.write(number, batch.toArrow(), killing.reached)

    rows = session.readStream.format("backfill").options(**job.options).load()
    writer = rows.writeStream.option("checkpointLocation", job.checkpoint).foreachBatch(write)
    return writer.trigger(**job.trigger).start()  # type: ignore[arg-type]  # its overloads name one trigger each


def run(session: SparkSession, job: SparkJob) -> None:
    from pyspark.errors import StreamingQueryException  # noqa: PLC0415 - reads the environment

    for left in reversed(range(job.queries)):
        try:
            start(session, job).awaitTermination()
        except StreamingQueryException as error:
            print(f"--- the query failed: {str(error)[:3000]}", flush=True)
            if not left or not MAY_BE_STARTED_AGAIN.search(str(error)):
                raise
        else:
            return


def main(text: str) -> None:
    job = SparkJob.from_json(text)
    folder = Path(job.folder)
    folder.mkdir()
    # `spark_session` puts the sources on the path; `site` was there before and stays.
    assert SITE in os.environ["PYTHONPATH"]
    with spark_session(folder, job.spark) as session:
        session.sparkContext.setLogLevel(job.log_level)
        run(session, job)
        if job.gate:
            while not Path(job.gate).exists():
                time.sleep(0.05)
            run(session, job)


if __name__ == "__main__":
    main(sys.argv[1])
