"""`spark.read` with `startingPosition`: the changes between two positions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from backfill import span
from backfill.adapters import open_upstream
from backfill.options import OnTruncate, parse
from backfill.rows import RowFormat
from backfill.spark.head_start import head_start
from backfill.spark.partition import own
from backfill.spark.refusal import without_traceback, yielding_without_traceback
from backfill.spark.table_options import as_kept
from backfill.spark.types import as_expected, require_same, to_spark
from backfill.upstream import ChangeReader


@dataclass
class SpanPartition(InputPartition):
    """Two positions, and what reads the changes between them. Good for as long as the upstream keeps these."""

    changes: ChangeReader
    rows: RowFormat
    on_truncate: OnTruncate
    table: str

    def __repr__(self) -> str:
        return f"SpanPartition({self.changes.after!r}, {self.changes.upto!r})"


class SpanReader(DataSourceReader):
    """Reads all changes in one task, because a change log is one sequence.

    `asked`: see `BackfillBatchReader`.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType, *, asked: Collection[str]) -> None:
        self._given = given
        self._schema = schema
        self._asked = asked

    @without_traceback
    def partitions(self) -> Sequence[InputPartition]:
        options = as_kept(parse(self._given, asked=self._asked), self._schema)
        with closing(open_upstream(options)) as upstream:
            rows = RowFormat.of(upstream.schema(), options.stream)
            require_same(self._schema, to_spark(rows.schema))
            changes, table = span.changes_of(upstream, options), upstream.identity().table
            return [SpanPartition(changes, rows, options.stream.on_truncate, table)]

    @yielding_without_traceback
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in a task."""
        found = own(partition, SpanPartition)
        head_start()
        rows = span.read(found.changes, found.rows, found.on_truncate, found.table)
        yield from as_expected(rows, self._schema)
