"""Arrow types as Spark's, by Spark's own mapping."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType


def to_spark(schema: pa.Schema) -> StructType:
    """The Spark schema whose Arrow schema is this one again."""
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def to_arrow(schema: StructType) -> pa.Schema:
    """What Spark expects of each record batch; it compares only the first one of a task with it."""
    return to_arrow_schema(schema, timezone="UTC")
