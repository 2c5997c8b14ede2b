"""The schema of a DataFrame compared with the source's."""

from __future__ import annotations

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from backfill.errors import SchemaChangedError
from backfill.spark.types import require_same


def schema(*, v_may_be_null: bool = True, type_may_be_null: bool = False) -> StructType:
    return StructType(
        [
            StructField("id", LongType()),
            StructField("v", StringType(), v_may_be_null),
            StructField("_change_type", StringType(), type_may_be_null),
        ]
    )


def test_a_schema_may_say_less_than_the_source_of_what_is_null_and_no_more() -> None:
    require_same(schema(), schema())
    require_same(schema(type_may_be_null=True), schema())
    with pytest.raises(SchemaChangedError, match=r"has v as not null.*Leave out schema\(…\), or NOT NULL in it"):
        require_same(schema(v_may_be_null=False), schema())
