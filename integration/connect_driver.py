"""A Spark Connect session of its own, with a catalog that outlives it.

    python -m integration.connect_driver '{"folder": …, "url": …, "login": {…}, "settings": {…}}'

makes the table `orders_feed` over `public.orders` with SQL, reads it as a batch and as a stream, copies another stream
of it to `orders_copy`, and prints what it found as JSON. It gives a password wherever one may be given.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backfill.sinks.postgres import apply_to
from backfill.spark.monitor import progress
from backfill.spark.prometheus import PrometheusListener
from integration.spark_stream import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main(given: dict[str, Any]) -> None:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - reads the environment

    builder = SparkSession.builder.remote("local[2]")
    for name, value in given["settings"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        print(json.dumps(surfaces(spark, given["url"], given["login"], Path(given["folder"]))))
    finally:
        spark.stop()


def surfaces(spark: SparkSession, url: str, login: dict[str, str], folder: Path) -> dict[str, Any]:
    given = f"user = '{login['user']}', password = '{login['password']}'"
    where = f"url '{url}', dbtable 'public.orders'"
    spark.sql(f"CREATE TABLE orders_feed USING backfill OPTIONS ({where}, stateDir '{folder / 'feed'}')")
    spark.sql(f"CREATE TEMPORARY VIEW v USING backfill OPTIONS ({where}, {given})")
    batch = spark.read.format("backfill").option("url", url).option("dbtable", "orders").options(**login)
    stream = spark.sql(f"SELECT * FROM STREAM orders_feed WITH (stateDir = '{folder / 'connect'}', {given})")
    writer = stream.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    listener = PrometheusListener()
    spark.streams.addListener(listener)
    query = writer.trigger(availableNow=True).start(str(folder / "out"))
    query.awaitTermination()
    seen = progress(query)
    wait_for(lambda: "backfill_query_active" in listener.text())
    spark.streams.removeListener(listener)
    copied = spark.sql(f"SELECT * FROM STREAM orders_feed WITH (stateDir = '{folder / 'copying'}', {given})")
    apply_batch = apply_to(url=url, table="orders_copy", key=["id"], query="copied", **login)
    copier = copied.writeStream.foreachBatch(apply_batch).option("checkpointLocation", str(folder / "copied"))
    copier.trigger(availableNow=True).start().awaitTermination()
    return {
        "session": type(spark).__module__,
        "batch": batch.option("filter", "id <= 3").load().count(),
        "table": spark.sql(f"SELECT count(*) FROM orders_feed WITH ({given})").collect()[0][0],
        "view": spark.table("v").count(),
        "progress": [seen.phase, 0 if seen.reported is None else seen.reported.snapshot_rows, seen.active],
        "stream": spark.read.parquet(str(folder / "out")).where("_change_type = 'insert'").count(),
    }


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
