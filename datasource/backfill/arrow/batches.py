"""Record batches in other columns, or cut anew: what has a fixed cost for each call is given many rows at once."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa

_NONE: Final[Mapping[str, pa.Scalar[Any]]] = MappingProxyType({})


def coalesced(batches: Iterable[pa.RecordBatch], rows: int, size: int = sys.maxsize) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of `rows` rows; of fewer only at the end, and where the next given batch would make one
    larger than `size` bytes.

    No batch is empty. A given batch that is larger than `size` by itself is not cut because of that.
    """
    kept: list[pa.RecordBatch] = []
    kept_rows = kept_bytes = 0
    for given in batches:
        rest = given
        while rest.num_rows:
            some = rest.slice(0, rows - kept_rows)
            some_bytes = size_of(some)
            if kept_rows == rows or (kept and kept_bytes + some_bytes > size):
                yield as_one_batch(pa.Table.from_batches(kept))
                kept, kept_rows, kept_bytes = [], 0, 0
                some = rest.slice(0, rows)
                some_bytes = size_of(some)
            kept.append(some)
            kept_rows += some.num_rows
            kept_bytes += some_bytes
            rest = rest.slice(some.num_rows)
    if kept:
        yield as_one_batch(pa.Table.from_batches(kept))


def without_first(batches: Iterable[pa.RecordBatch], passed_on: int) -> Iterator[pa.RecordBatch]:
    """The batches without the first `passed_on` of their rows; none is empty."""
    for batch in batches:
        if batch.num_rows > passed_on:
            yield batch.slice(passed_on)
        passed_on = max(0, passed_on - batch.num_rows)


def in_columns(
    batch: pa.RecordBatch, columns: pa.Schema, others: Mapping[str, pa.Scalar[Any]] = _NONE
) -> pa.RecordBatch:
    """The batch in these columns and types; a column that it lacks has its value of `others` in each row, or null."""
    present = set(batch.schema.names)
    values = [
        batch.column(field.name).cast(field.type) if field.name in present else _repeated(batch, field, others)
        for field in columns
    ]
    return pa.RecordBatch.from_arrays(values, schema=columns)


def _repeated(batch: pa.RecordBatch, field: pa.Field[Any], others: Mapping[str, pa.Scalar[Any]]) -> pa.Array[Any]:
    value: Any = others.get(field.name, pa.scalar(None, field.type))
    array: pa.Array[Any] = pa.repeat(value, batch.num_rows)
    return array


def size_of(batch: pa.RecordBatch) -> int:
    """The batch's `nbytes`. Asked for directly, it takes ten times as long, which is much for a thousand columns."""
    return batch.to_struct_array().nbytes


def as_one_batch(table: pa.Table) -> pa.RecordBatch:
    """The table as one batch."""
    if not table.num_columns:
        rows: Any = pa.StructArray.from_buffers(pa.struct([]), table.num_rows, [None])
        return pa.RecordBatch.from_struct_array(rows)
    if table.num_rows:
        # All columns at once: one by one takes seven times as long, which is much where there are a thousand of them.
        found = table.combine_chunks().to_batches()
        if len(found) == 1:
            return found[0]
    columns = [pa.concat_arrays([pa.nulls(0, item.type), *item.chunks]) for item in table.columns]
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)
