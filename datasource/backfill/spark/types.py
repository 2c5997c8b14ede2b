"""Arrow types as Spark's, by Spark's own mapping; and whether a DataFrame's schema is what there is."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from backfill.errors import SchemaChangedError


def to_spark(schema: pa.Schema) -> StructType:
    """The Spark schema whose Arrow schema is this one again."""
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def to_arrow(schema: StructType) -> pa.Schema:
    """What Spark expects of each record batch; it compares only the first one of a task with it."""
    return to_arrow_schema(schema, timezone="UTC")


def as_expected(batches: Iterator[pa.RecordBatch], schema: StructType) -> Iterator[pa.RecordBatch]:
    """The batches, each with exactly the schema that Spark expects, because it checks only the first one of a task."""
    expected = to_arrow(schema)
    for batch in batches:
        yield batch if batch.schema.equals(expected) else batch.cast(expected)


def require_same(asked: StructType, found: StructType) -> None:
    """Raises SchemaChangedError unless the DataFrame has the columns that there are.

    Spark gives back what the source's `schema` said, or what the user said instead; meanwhile the table may have
    changed.
    """
    wanted, now = ([(field.name, field.dataType) for field in each] for each in (asked, found))
    if wanted != now:
        raise SchemaChangedError(
            f"the DataFrame has the schema {asked.simpleString()}, and the table has {found.simpleString()}. If the "
            "table was altered, load() it again, or create its Spark table again. Leave out schema(…); the options "
            "columns and customSchema choose columns and types. A table of Spark's catalog has the columns of a "
            "stream if it was made with the option stateDir or startingPosition, and without a list of columns"
        )
    strict = [field.name for field, there in zip(asked, found, strict=True) if there.nullable and not field.nullable]
    if strict:
        raise SchemaChangedError(
            f"the DataFrame has {', '.join(strict)} as not null, expected columns that may be null. Leave out "
            "schema(…), or NOT NULL in it"
        )
