"""Rows of one version of a table by key range, in key order; files without such rows are left out.

`deltalake` leaves out files by their statistics, and knows deletion vectors, partitions, renamed and added columns.
Its statistics are only trusted to leave out files: which rows lie in a range is decided over the rows themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder
from deltalake.schema import PrimitiveType

from backfill.arrays import Indices
from backfill.errors import OptionsError
from backfill.upstream import TableSize
from backfill.upstream.delta.files.footers import largest_rows
from backfill.upstream.delta.files.statistics import leaving_out
from backfill.upstream.delta.keys.columns import KeyColumns, quoted
from backfill.upstream.delta.keys.sorted_keys import require_keys
from backfill.upstream.delta.keys.sorting import in_order
from backfill.upstream.delta.snapshot.passes import passes
from backfill.upstream.delta.snapshot.querying import queried, searching
from backfill.upstream.delta.tables.types import misread
from backfill.vnode import Coverage, KeyRange

_OF_A_ROW: Final = ("Conversion Error", "Out of Range Error", "Invalid Input Error", "Mismatch Type Error")
"""How DuckDB begins where an expression has no value for a row: a cast that fails, an overflow, a division by zero."""

_SESSION: Final = {"datafusion.execution.parquet.coerce_int96": "us"}
"""Spark writes times as INT96, unless told otherwise. Those before 1677 and after 2262 `deltalake` reads as others,
because it counts them in nanoseconds, but for a query that says how."""

_BATCH_BYTES: Final = 8 << 20
_BATCH_ROWS: Final = 8192
"""About how many bytes of rows are read at a time, and the most rows, which is DataFusion's own: several such batches
are in memory at once."""

_LOOKED_AT: Final = (16, 1000)
_LOOKED_AT_BYTES: Final = 8 << 20
"""How many rows tell how large a row is: a few, and more if those take no more than about so many bytes."""


def rows_within(
    table: DeltaTable, columns: pa.Schema, key: KeyColumns, ranges: Sequence[KeyRange], condition: str
) -> Iterator[pa.RecordBatch]:
    """The rows of each range in turn, in key order and with these columns; only those for which the condition holds, if
    there is one.
    """
    rows = Rows.of(table, columns, condition)
    for together in passes(table, key, ranges):
        yield from in_order(_inside(rows, key, together), columns, key.names)


def _inside(rows: Rows, key: KeyColumns, coverage: Coverage) -> Iterator[pa.RecordBatch]:
    for batch in rows.where(leaving_out(rows.table, key, coverage)):
        chosen = batch.filter(key.covered(batch.select(key.names), coverage))
        require_keys(chosen.select(key.names))
        yield chosen


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
        return cls(table, columns, condition, _batch_rows(table, readable(table) if condition else columns))

    def where(self, predicate: str | None) -> Iterator[pa.RecordBatch]:
        """Those for which the predicate holds, and maybe others, in no order."""
        names = readable(self.table).names if self.condition else self.columns.names
        found = scanned(self.table, names, predicate, batch_rows=self.batch_rows)
        if self.condition:
            yield from _chosen(found, self.columns, self.condition)
        else:
            for batch in found:
                for piece in _pieces(batch):
                    yield piece.cast(self.columns)


def _chosen(rows: pa.RecordBatchReader, columns: pa.Schema, condition: str) -> Iterator[pa.RecordBatch]:
    """DuckDB says of each row whether it is chosen. It would hold 2,048 rows at least, were it to give them."""
    with searching() as session:
        for batch in rows:
            session.register("feed", pa.Table.from_batches([batch]))
            try:
                found = session.sql(f"SELECT ({condition}\n) FROM feed").to_arrow_table()
            except duckdb.Error as error:
                kind = str(error).partition(":")[0]
                if kind not in _OF_A_ROW:
                    raise
                # What follows the kind may be the row's value.
                raise OptionsError(
                    f"the condition {condition!r} (filter or snapshotFilter) fails for a row of the table: {kind}. "
                    "Write it so that it is true, false or null for each row, such as with TRY_CAST in place of CAST"
                ) from None
            chosen, at = found.column(0).combine_chunks(), 0
            for piece in _pieces(batch.select(columns.names)):
                yield piece.cast(columns).filter(chosen.slice(at, piece.num_rows))
                at += piece.num_rows


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in pieces that take no more than about `_BATCH_BYTES` with their texts as columns of their types have
    them: of one that is there many times each row here only says where it is.
    """
    sizes = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        if column.type in (pa.string_view(), pa.binary_view()):
            sizes += _lengths(column)
    ends = np.cumsum(sizes)
    if not batch.num_rows or ends[-1] <= _BATCH_BYTES:
        yield batch
        return
    starts = [0, *(np.flatnonzero(np.diff(ends // _BATCH_BYTES)) + 1).tolist()]
    for start, end in pairwise([*starts, batch.num_rows]):
        yield batch.slice(start, end - start)


def _lengths(column: pa.Array[Any]) -> Indices:
    """How many bytes each text has (Arrow's columnar format, Variable-size Binary View Layout); any for null."""
    views: Any = column.buffers()[1]
    if views is None:
        return np.zeros(len(column), np.int64)
    found: Indices = np.frombuffer(views, np.int32)[::4][column.offset : column.offset + len(column)].astype(np.int64)
    return found


def rows_of(table: DeltaTable, columns: pa.Schema, key: KeyColumns, keys: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows with these keys, in no order."""
    predicate = leaving_out(table, key, (key.around(keys),))
    found = scanned(table, columns.names, predicate, batch_rows=_batch_rows(table, columns))
    selected, names = (", ".join(map(quoted, each)) for each in (columns.names, key.names))
    query = f"SELECT {selected} FROM feed SEMI JOIN keys USING ({names})"
    for batch in queried(query, {"feed": found, "keys": pa.Table.from_batches([keys])}):
        yield batch.cast(columns)


def readable(table: DeltaTable) -> pa.Schema:
    """The columns that a condition may name."""
    found: Any = table.schema().to_arrow()
    columns = pa.schema(found)
    left_out = misread(columns, table.metadata().partition_columns)
    return pa.schema([field for field in columns if field.name not in left_out])


def scanned(
    table: DeltaTable,
    names: Sequence[str],
    predicate: str | None,
    *,
    batch_rows: int = _BATCH_ROWS,
    most: int | None = None,
) -> pa.RecordBatchReader:
    """The rows for which the predicate holds, and maybe others, in no order.

    So many at a time, and no more than `most` of them, if that is given.
    """
    selected = ", ".join(map(quoted, names))
    query = f"SELECT {selected} FROM feed" + ("" if predicate is None else f" WHERE {predicate}")
    query += "" if most is None else f" LIMIT {most}"
    session = {**_SESSION, "datafusion.execution.batch_size": str(batch_rows)}
    found = pa.RecordBatchReader.from_stream(QueryBuilder(session).register("feed", table).execute(query))
    written = {field.name for field in table.schema().fields if field.type == PrimitiveType("string")}
    texts = written.intersection(found.schema.names, table.metadata().partition_columns)
    return _with_nulls(found, texts) if texts else found


def _batch_rows(table: DeltaTable, columns: pa.Schema) -> int:
    """How many rows of these columns are read at a time: the first rows found and the file with the largest ones tell.
    No file is looked at where the columns' types do.
    """
    if all(pa.types.is_primitive(kind) or pa.types.is_decimal(kind) for kind in columns.types):
        size = sum(kind.bit_width for kind in columns.types) // 8
    else:
        try:
            size = max(row_bytes(table, columns) or 1, largest_rows(table, columns.names))
        except Exception:  # noqa: BLE001 - deltalake raises Exception itself. What matters the rows' reader will meet.
            size = in_files(table).row_bytes
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(1, size)))


def row_bytes(table: DeltaTable, columns: pa.Schema) -> int | None:
    """About how many bytes these columns of a row take in memory, by the first rows found; None without any."""
    size = rows = 0
    for most in _LOOKED_AT:
        if rows and size * most > rows * _LOOKED_AT_BYTES:
            break
        # A text that is there many times is one for `deltalake`, and many as a column of its type.
        found = [batch.cast(columns) for batch in scanned(table, columns.names, None, batch_rows=most, most=most)]
        rows, size = sum(batch.num_rows for batch in found), sum(batch.nbytes for batch in found)
    return max(1, size // rows) if rows else None


def in_files(table: DeltaTable) -> TableSize:
    """By the files' statistics, which do not count rows that a deletion vector deletes, and as they are compressed."""
    actions = pa.table(table.get_add_actions())
    size = int(pc.sum(actions["size_bytes"]).as_py() or 0)
    rows = int(pc.sum(actions["num_records"]).as_py() or 0) if "num_records" in actions.column_names else 0
    rows = max(1, rows or size // 100)
    return TableSize(rows, max(1, size // rows))


def _with_nulls(found: pa.RecordBatchReader, texts: Collection[str]) -> pa.RecordBatchReader:
    """A partition's empty text as what it is in Delta's log (protocol, Partition Value Serialization): null."""
    fields = [pa.field(field.name, pa.string()) if field.name in texts else field for field in found.schema]
    schema = pa.schema(fields)

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in found:
            arrays: list[pa.Array[Any]] = list(batch.columns)
            for at, name in enumerate(batch.schema.names):
                if name in texts:
                    values = arrays[at].cast(pa.string())
                    arrays[at] = pc.if_else(pc.equal(values, pa.scalar("")), pa.scalar(None, pa.string()), values)
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())
