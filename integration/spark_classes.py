"""Makes `CLASSES`, once for each installation: `python -m integration.spark_classes`.

A Spark does some of everything here, and at its end Java writes down the classes that it had loaded.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from integration.spark_session import CLASSES, quick_jvm, spark_session


def main() -> None:
    CLASSES.unlink(missing_ok=True)
    CLASSES.parent.mkdir(parents=True, exist_ok=True)
    part = CLASSES.with_suffix(".part")
    options = {"spark.driver.defaultJavaOptions": f"{quick_jvm()} -XX:ArchiveClassesAtExit={part}"}
    with tempfile.TemporaryDirectory() as name, spark_session(Path(name), options) as session:
        work(session, Path(name))
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()  # ends the JVM, which writes the classes; else it would end only after us
    gateway.proc.wait(300)
    part.rename(CLASSES)


def work(session: SparkSession, folder: Path) -> None:
    numbers = session.range(1000).selectExpr("id", "id % 7 AS k", "CAST(id AS STRING) AS v", "current_timestamp() AS t")
    numbers.createOrReplaceTempView("numbers")
    session.sql("SELECT k, count(*), max(n.v) FROM numbers JOIN numbers AS n USING (k) GROUP BY k ORDER BY k").collect()
    numbers.mapInArrow(same, numbers.schema).toArrow()
    rate = session.readStream.format("rate").option("rowsPerSecond", 10).load()
    writer = rate.writeStream.option("checkpointLocation", str(folder / "checkpoint")).foreachBatch(count)
    writer.trigger(availableNow=True).start().awaitTermination()


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


def count(batch: DataFrame, _number: int) -> None:
    batch.count()


if __name__ == "__main__":
    main()
