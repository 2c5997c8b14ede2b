"""Runs a stream until nothing is left to read."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.rounds import Run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTS: Final = ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")
"""What Spark says it spends a batch's time on. Ours are in latestOffset (where the batch ends; for changes: reading
and decoding the log), queryPlanning (what its readers read; for changes: marking and packing) and addBatch."""

BATCHES: Final = "batches"
WALL: Final = "wall"


def drain(spark: SparkSession, options: Mapping[str, str], checkpoint: Path) -> Run:
    """Reads all there is into the noop sink.

    The run's time is that of the batches, from asking for an offset to the entry in the commit log. The start of the
    query, which imports pyspark in a new Python process, is not in it, but in the part `wall`.
    """
    frame = spark.readStream.format("backfill").options(**options).load()
    began = time.perf_counter()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    wall = time.perf_counter() - began
    batches = [progress for progress in query.recentProgress if progress.numInputRows]
    rows = sum(progress.numInputRows for progress in batches)
    parts = {part: sum(progress.durationMs.get(part, 0) for progress in batches) / 1000 for part in PARTS}
    seconds = sum(progress.durationMs["triggerExecution"] for progress in batches) / 1000
    return Run(rows, seconds, {**parts, BATCHES: len(batches) / 1000, WALL: wall})
