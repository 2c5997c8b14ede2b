"""Rows of one version of a table by key range, in key order; files without such rows are left out.

Statistics are only trusted to leave out files: which rows lie in a range is decided over the rows themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from deltalake import DeltaTable

from backfill.upstream.delta.files.statistics import leaving_out
from backfill.upstream.delta.keys.columns import KeyColumns, quoted
from backfill.upstream.delta.keys.sorted_keys import require_keys
from backfill.upstream.delta.keys.sorting import in_order
from backfill.upstream.delta.snapshot.conditions import judged
from backfill.upstream.delta.snapshot.passes import passes
from backfill.upstream.delta.snapshot.pieces import pieces
from backfill.upstream.delta.snapshot.querying import queried
from backfill.upstream.delta.snapshot.scan import readable, scanned
from backfill.upstream.delta.snapshot.sizes import batch_rows
from backfill.vnode import Coverage, KeyRange


def rows_within(
    table: DeltaTable, columns: pa.Schema, key: KeyColumns, ranges: Sequence[KeyRange], condition: str
) -> Iterator[pa.RecordBatch]:
    """The rows of each range in turn, in key order and with these columns; only those for which the condition holds, if
    there is one.
    """
    rows = Rows.of(table, columns, condition)
    for together in passes(table, key, ranges):
        yield from in_order(rows.within(key, together), columns, key.names)


def without_key(table: DeltaTable, key: KeyColumns, condition: str) -> Iterator[pa.RecordBatch]:
    """The keys that lack a value, and maybe others; only of rows for which the condition holds, if there is one."""
    predicate = " OR ".join(f"{quoted(name)} IS NULL" for name in key.names)
    return Rows.of(table, key.schema, condition).where(predicate)


def rows_of(table: DeltaTable, columns: pa.Schema, key: KeyColumns, keys: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows with these keys, in no order."""
    predicate = leaving_out(table, key, (key.around(keys),))
    found = scanned(table, columns.names, predicate, batch_rows=batch_rows(table, columns))
    selected, names = (", ".join(map(quoted, each)) for each in (columns.names, key.names))
    query = f"SELECT {selected} FROM feed SEMI JOIN keys USING ({names})"
    for batch in queried(query, {"feed": found, "keys": pa.Table.from_batches([keys])}):
        yield batch.cast(columns)


@dataclass(frozen=True, slots=True)
class Rows:
    """These columns of a table's rows for which the condition holds, if there is one; read so many at a time."""

    table: DeltaTable
    columns: pa.Schema
    condition: str
    batch_rows: int

    @classmethod
    def of(cls, table: DeltaTable, columns: pa.Schema, condition: str) -> Rows:
        """The condition may name columns that are not carried."""
        return cls(table, columns, condition, batch_rows(table, readable(table) if condition else columns))

    def within(self, key: KeyColumns, coverage: Coverage) -> Iterator[pa.RecordBatch]:
        """The rows with keys in these ranges, in no order; TableError where one that is looked at has no key."""
        for batch in self.where(leaving_out(self.table, key, coverage)):
            keys = batch.select(key.names)
            require_keys(keys)
            yield batch.filter(key.covered(keys, coverage))

    def where(self, predicate: str | None) -> Iterator[pa.RecordBatch]:
        """The rows for which the predicate holds, and maybe others, in no order."""
        if not self.condition:
            for batch in self._scanned(self.columns.names, predicate):
                for piece in pieces(batch):
                    yield piece.cast(self.columns)
            return
        for batch, chosen in judged(self._scanned(readable(self.table).names, predicate), self.condition):
            at = 0
            for piece in pieces(batch.select(self.columns.names)):
                yield piece.cast(self.columns).filter(chosen.slice(at, piece.num_rows))
                at += piece.num_rows

    def _scanned(self, names: list[str], predicate: str | None) -> pa.RecordBatchReader:
        return scanned(self.table, names, predicate, batch_rows=self.batch_rows)
