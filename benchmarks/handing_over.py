"""Rows that are in memory already, handed to Spark as any source in Python hands them over.

No such source can be faster, so this bounds what the others can reach.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from benchmarks.rounds import Run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

BATCH_ROWS: Final = 62_500
"""How many of these rows a batch of ours has."""

SCHEMA: Final = "aid int, bid int, abalance int, filler string"


class InMemory(DataSource):
    """Rows like those of pgbench_accounts."""

    @classmethod
    def name(cls) -> str:
        return "in_memory"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's signature
        return _Reader(int(self.options["rows"]), int(self.options["numPartitions"]))


class _Reader(DataSourceReader):
    def __init__(self, rows: int, partitions: int) -> None:
        self._rows, self._partitions = rows, partitions

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(at) for at in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002 - Spark's signature
        numbers, filler = np.arange(BATCH_ROWS, dtype=np.int32), pa.array([" " * 84] * BATCH_ROWS)
        rows = self._rows // self._partitions
        for begin in range(0, rows, BATCH_ROWS):
            some = numbers[: rows - begin]
            # Arrow arrays of their own, as each batch of a source has them.
            columns: list[pa.Array[Any]] = [*map(pa.array, (some, some, some)), filler.slice(0, len(some))]
            yield pa.RecordBatch.from_arrays(columns, ["aid", "bid", "abalance", "filler"])


def read(spark: SparkSession, partitions: int, rows: int) -> Run:
    spark.dataSource.register(InMemory)
    whole = rows // partitions * partitions
    options = {"rows": str(whole), "numPartitions": str(partitions)}
    frame = spark.read.format("in_memory").options(**options).load()
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return Run(whole, time.perf_counter() - began)
