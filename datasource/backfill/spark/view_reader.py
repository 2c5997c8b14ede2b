"""`spark.read` with the option `view`: where a stream is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from backfill.errors import SchemaChangedError
from backfill.options import View
from backfill.spark.partition import own
from backfill.spark.refusal import without_traceback, yielding_without_traceback
from backfill.spark.types import to_arrow, to_spark
from backfill.state_dir.views import look


@dataclass
class ViewPartition(InputPartition):
    """All rows of a view."""

    rows: pa.Table = field(repr=False)


class ViewReader(DataSourceReader):
    """Looks when the read is planned, because that is done where `stateDir` is."""

    def __init__(self, view: View, folder: Path, schema: StructType) -> None:
        self._view = view
        self._folder = folder
        self._schema = schema

    @without_traceback
    def partitions(self) -> Sequence[InputPartition]:
        found = look(self._view, self._folder)
        self._require_columns(to_spark(found.schema))
        expected = to_arrow(self._schema)
        return [ViewPartition(found.select(expected.names).cast(expected))]

    def _require_columns(self, found: StructType) -> None:
        """Refuses columns that the view lacks. Spark gives back what `schema` said, or what the user said instead."""
        there = {field.name: field.dataType.simpleString() for field in found}
        wrong = [
            f"{field.name} {field.dataType.simpleString()}{'' if field.nullable else ' not null'}"
            for field in self._schema
            if there.get(field.name) != field.dataType.simpleString() or not field.nullable
        ]
        if wrong:
            columns = ", ".join(f"{name} {kind}" for name, kind in there.items())
            raise SchemaChangedError(
                f"the view {self._view.value} has the columns {columns}, which may be null, and not "
                f"{', '.join(wrong)}. load() it again, without schema(…); in SQL make a table or view of its own for "
                "it, without a list of columns"
            )

    @yielding_without_traceback
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        found = own(partition, ViewPartition)
        yield from found.rows.to_batches()
