"""Reads snapshot rows on an executor: a version of the table, the one that is named or the one of now."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from deltalake import DeltaTable

from backfill.errors import DataLossError, FileGoneError
from backfill.upstream.delta.change_files import typed
from backfill.upstream.delta.failures import translating
from backfill.upstream.delta.location import KEEP_LONGER, START_OVER, open_at, open_latest
from backfill.upstream.delta.position import Position
from backfill.upstream.delta.scan import rows_of, rows_within
from backfill.upstream.delta.sorted_keys import require_distinct
from backfill.upstream.delta.table import Table
from backfill.vnode import KeyRange


@dataclass(frozen=True, slots=True)
class DeltaSnapshotReader:
    """See `backfill.upstream.SnapshotReader`. A token is a position, and good for as long as its files are kept."""

    table: Table
    filter: str = ""
    snapshot_filter: str = ""

    def read(self, token: str | None, ranges: Sequence[KeyRange]) -> Iterator[pa.RecordBatch]:
        table = self.table
        only = self.filter if token is None else self.snapshot_filter

        def rows(opened: DeltaTable, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
            for item in ranges:
                yield from self._distinct(rows_within(opened, columns, table.key, item, only))

        yield from self._at(token, rows)

    def lookup(self, token: str | None, keys: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if keys.num_rows:
            yield from self._at(token, lambda opened, columns: rows_of(opened, columns, self.table.key, keys))

    def _at(
        self, token: str | None, rows: Callable[[DeltaTable, pa.Schema], Iterator[pa.RecordBatch]]
    ) -> Iterator[pa.RecordBatch]:
        uri, columns = self.table.uri, self.table.columns
        opened = open_latest(uri) if token is None else open_at(uri, Position.parse(token))
        try:
            with translating(uri):
                # A batch may be logged before a column is added and read after that: then it is of a version without.
                for batch in rows(opened, columns if token is None else _present(opened, columns)):
                    yield typed(batch, {}, columns)
        except FileGoneError as error:
            raise DataLossError(
                f"files of version {opened.version()} of the Delta table {uri} are gone ({error}): VACUUM has removed "
                f"them before they were read. {START_OVER}; {KEEP_LONGER}"
            ) from None

    def _distinct(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows, with a check that no key comes twice."""
        last: pa.RecordBatch | None = None
        for batch in rows:
            if not batch.num_rows:
                continue
            keys = batch.select(self.table.key.names)
            before = keys.slice(0, 0) if last is None else last
            require_distinct([pa.concat_arrays(both) for both in zip(before.columns, keys.columns, strict=True)])
            last = keys.slice(keys.num_rows - 1)
            yield batch


def _present(opened: DeltaTable, columns: pa.Schema) -> pa.Schema:
    names = {field.name for field in opened.schema().fields}
    return pa.schema([field for field in columns if field.name in names])
