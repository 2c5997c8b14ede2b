"""All of the table, then every change to it: as a log of changes, and as a copy that the changes are applied to."""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@dp.table
def orders_log() -> DataFrame:
    """A streaming table: each run adds what has happened since the one before."""
    feed = spark.readStream.format("backfill").option("url", "postgresql://app@db/shop")
    return feed.option("dbtable", "public.orders").option("stateDir", "/data/state/orders_log").load()
