"""Reads snapshot rows on an executor: a version of the table, the one that is named or the latest one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable

from backfill.arrow.batches import in_columns
from backfill.arrow.widening import widens
from backfill.errors import SchemaChangedError
from backfill.upstream.delta.failures import translating
from backfill.upstream.delta.keys.sorted_keys import require_distinct, require_keys
from backfill.upstream.delta.position import Position
from backfill.upstream.delta.snapshot.rows import rows_of, rows_within, without_key
from backfill.upstream.delta.tables.opening import open_at, open_latest, reading
from backfill.upstream.delta.tables.table import Table, require_as_described, require_partition_values
from backfill.upstream.delta.tables.types import arrow_type
from backfill.upstream.delta.tables.ways_out import KEEP_LONGER, REPAIR, START_OVER
from backfill.vnode import KeyRange

_AS_PLANNED: Final = f"{START_OVER}; {KEEP_LONGER}"
"""What to do where files of the version that a batch is read at are gone."""


@dataclass(frozen=True, slots=True)
class DeltaSnapshotReader:
    """See `backfill.upstream.SnapshotReader`. A token is a position, and good for as long as its files are kept."""

    table: Table
    filter: str
    snapshot_filter: str

    def read(self, token: str, ranges: Sequence[KeyRange]) -> Iterator[pa.RecordBatch]:
        opened, columns = self._at(token)
        yield from self._typed(opened, self._within(opened, columns, ranges, self.snapshot_filter), _AS_PLANNED)

    def scan(self, ranges: Sequence[KeyRange]) -> Iterator[pa.RecordBatch]:
        opened = open_latest(self.table.uri)
        with translating(self.table.uri):
            require_as_described(opened, self.table)
        yield from self._typed(opened, self._all_within(opened, ranges), REPAIR)

    def _all_within(self, opened: DeltaTable, ranges: Sequence[KeyRange]) -> Iterator[pa.RecordBatch]:
        """The rows of the ranges. TableError where any row of the table has no key: it may have come since the ranges
        were cut, and lies in none, and a file of such rows alone is left out by all of them.
        """
        for keys in without_key(opened, self.table.key, self.filter):
            require_keys(keys)
        yield from self._within(opened, self.table.columns, ranges, self.filter)

    def lookup(self, token: str, keys: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """See `backfill.upstream.Upstream.lookup`."""
        if keys.num_rows:
            opened, columns = self._at(token)
            yield from self._typed(opened, rows_of(opened, columns, self.table.key, keys), _AS_PLANNED)

    def _at(self, token: str) -> tuple[DeltaTable, pa.Schema]:
        """The version, and the columns that it has: a batch may be logged before one is added, and read after that."""
        opened = open_at(self.table.uri, Position.parse(token))
        with translating(self.table.uri):
            types: dict[str, Any] = {field.name: field.type for field in opened.schema().fields}
        columns = pa.schema([field for field in self.table.columns if field.name in types])
        wrong = [item.name for item in columns if not widens(item.type, arrow_type(item.name, types[item.name]))]
        if wrong:
            raise SchemaChangedError(
                f"version {opened.version()} of the Delta table {self.table.uri} is to be read, but column "
                f"{', '.join(wrong)} got another type since. If it is not one of keyColumns, leave it out with the "
                f"option columns until the batch is done. {START_OVER} otherwise"
            )
        require_partition_values(columns, opened.metadata().partition_columns)
        return opened, columns

    def _within(
        self, opened: DeltaTable, columns: pa.Schema, ranges: Sequence[KeyRange], condition: str
    ) -> Iterator[pa.RecordBatch]:
        return self._distinct(rows_within(opened, columns, self.table.key, ranges, condition))

    def _typed(self, opened: DeltaTable, rows: Iterator[pa.RecordBatch], way_out: str) -> Iterator[pa.RecordBatch]:
        with reading(self.table.uri, str(opened.version()), way_out):
            for batch in rows:
                yield in_columns(batch, self.table.columns)

    def _distinct(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows, with a check that no key comes twice."""
        last: pa.RecordBatch | None = None
        for batch in rows:
            keys = batch.select(self.table.key.names)
            before = keys.slice(0, 0) if last is None else last
            require_distinct([pa.concat_arrays(both) for both in zip(before.columns, keys.columns, strict=True)])
            last = keys.slice(keys.num_rows - 1)
            yield batch
