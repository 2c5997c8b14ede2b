"""`spark.read`: the table's rows as they are now, in parallel key ranges."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from backfill import scan
from backfill.adapters import open_upstream
from backfill.errors import SchemaChangedError
from backfill.options import parse
from backfill.spark.head_start import head_start
from backfill.spark.partition import own
from backfill.spark.refusal import without_traceback, yielding_without_traceback
from backfill.spark.table_options import with_columns
from backfill.spark.types import to_arrow, to_spark
from backfill.upstream import SnapshotReader, Upstream
from backfill.vnode import Coverage


@dataclass
class RangePartition(InputPartition):
    """Key ranges, and what reads them. Good for as long as the table stays what it is: no state is pinned."""

    ranges: Coverage
    reader: SnapshotReader

    def __repr__(self) -> str:
        return f"RangePartition({self.ranges!r})"


class BackfillBatchReader(DataSourceReader):
    """Reads the columns that `schema` names; a stream's columns that are not the table's are made up.

    `asked` are the options that were given with this read, and not kept by a table of Spark's catalog.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType, *, asked: Collection[str]) -> None:
        self._given = given
        self._schema = schema
        self._asked = asked

    @without_traceback
    def partitions(self) -> Sequence[InputPartition]:
        options = with_columns(parse(self._given, asked=self._asked), self._schema)
        with closing(open_upstream(options)) as upstream:
            self._require_types(upstream)
            reader = upstream.reader()
            return [RangePartition(ranges, reader) for ranges in scan.cut(upstream, options.stream)]

    def _require_types(self, upstream: Upstream) -> None:
        """Refuses types that the table does not have: Spark gives back what `schema` said, or what the user said
        instead, and meanwhile the table may have changed.
        """
        there = {field.name: field.dataType for field in to_spark(upstream.schema().output_columns)}
        asked = [(field, there[field.name]) for field in self._schema if field.name in there]
        wrong = [
            f"column {field.name} is {found.simpleString()}, and {field.dataType.simpleString()} is asked for"
            for field, found in asked
            if found != field.dataType
        ]
        wrong += [f"column {field.name} may be null, expected not null" for field, _ in asked if not field.nullable]
        if wrong:
            raise SchemaChangedError(
                f"{'; '.join(wrong)}. If the table was altered, load() it or create its Spark table again; leave out "
                "schema(…), or NOT NULL in it; the option customSchema chooses types"
            )

    @yielding_without_traceback
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in a task. Every batch has exactly the schema Spark expects, because it checks only the first."""
        found = own(partition, RangePartition)
        head_start()
        yield from scan.read(found.reader, found.ranges, to_arrow(self._schema))
