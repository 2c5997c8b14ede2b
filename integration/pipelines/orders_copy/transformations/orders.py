"""A copy of the table, kept by an AUTO CDC flow."""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@dp.temporary_view
def orders_changes() -> DataFrame:
    """Without rows as they were before an update, which REPLICA IDENTITY FULL brings."""
    feed = spark.readStream.format("backfill").option("url", "postgresql://app@db/shop")
    feed = feed.option("dbtable", "public.orders").option("stateDir", "/data/state/orders_copy")
    return feed.load().where("_change_type <> 'update_preimage'")


dp.create_streaming_table("lake.default.orders_copy")
dp.create_auto_cdc_flow(
    target="lake.default.orders_copy",
    source="orders_changes",
    keys=["id"],
    sequence_by="_sequence",
    apply_as_deletes="_change_type = 'delete'",
    except_column_list=["_change_type", "_is_snapshot", "_commit_version", "_commit_timestamp", "_sequence"],
)
