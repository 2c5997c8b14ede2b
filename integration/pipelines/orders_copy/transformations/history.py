"""Every version that a row of the table has had since the stream began, kept by an AUTO CDC flow."""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@dp.temporary_view
def orders_versions() -> DataFrame:
    """A stream of its own, because each flow is a query of its own."""
    feed = spark.readStream.format("backfill").option("url", "postgresql://app@db/shop")
    feed = feed.option("dbtable", "public.orders").option("stateDir", "/data/state/orders_history")
    return feed.load().where("_change_type <> 'update_preimage'")


dp.create_streaming_table("lake.default.orders_history")
dp.create_auto_cdc_flow(
    target="lake.default.orders_history",
    source="orders_versions",
    keys=["id"],
    sequence_by="_sequence",
    apply_as_deletes="_change_type = 'delete'",
    except_column_list=["_change_type", "_is_snapshot", "_commit_version", "_sequence"],
    stored_as_scd_type=2,
)
