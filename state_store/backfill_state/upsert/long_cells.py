"""Long texts and blobs of rows, in pieces that DuckDB stores and reads one by one.

DuckDB reads a column by vectors of 2,048 values, and stores one by row groups of 122,880. With 100 kB in each, finding
10 of 20 thousand rows took 2 s, and 1 took 0.6; from 4 kB on, a checkpoint wanted more memory than the 512 MB that it
had, and nothing could be written any more. In pieces of 512 bytes 100 of these rows are found in 0.1 s, they take a
third of the time to write, and 256 MB are enough. (Pieces of 1 kB needed more memory, and packed worse.)

In a row a long cell is null. Its pieces are found by the row's number, and make a value again without being copied one
by one: they lie one behind the other, as they did before they were cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from backfill_state.upsert.columns import Array, Field, Numbers

LONG: Final = 512
"""A text or blob of more bytes than this is kept apart, in pieces of as many."""

_COLUMNS: Final[list[Field]] = [
    pa.field("seq", pa.int64()),
    pa.field("cell", pa.int32()),
    pa.field("piece", pa.int32()),
    pa.field("data", pa.binary()),
]
PIECES: Final = pa.schema(_COLUMNS)
"""`seq` is the row's number and `cell` that of its column; `piece` counts from 0."""


def cut(rows: pa.Table, names: Sequence[str], seq: Numbers) -> tuple[pa.Table, pa.Table]:
    """The rows without the long cells of these columns, and their pieces; `seq` are the rows' numbers."""
    pieces = [PIECES.empty_table()]
    for cell, name in enumerate(names):
        if not may_be_long(rows.schema.field(name).type):
            continue
        column: Array = rows[name].combine_chunks()
        lengths: Array = pc.binary_length(column)
        long: Array = pc.fill_null(pc.greater(lengths, pa.scalar(LONG)), pa.scalar(False))
        if long.true_count:
            pieces.append(_pieces(column.filter(long), cell, seq[long.to_numpy(zero_copy_only=False)]))
            short = pc.if_else(long, pa.scalar(None, column.type), column)
            rows = rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), short)
    return rows, pa.concat_tables(pieces)


def mended(rows: pa.Table, names: Sequence[str], pieces: pa.Table) -> pa.Table:
    """The rows, which have a column `seq`, with their long cells in these columns; `pieces` come in any order."""
    seq, cell, piece = (pieces[name].to_numpy() for name in ("seq", "cell", "piece"))
    order = np.lexsort((piece, seq, cell))
    seq, cell = seq[order], cell[order]
    data: Array = pieces["data"].take(pa.array(order, pa.int64())).combine_chunks()
    for number in np.unique(cell).tolist():  # A few columns, not rows.
        begin, end = np.searchsorted(cell, [number, number + 1])
        name = names[number]
        column: Array = rows[name].combine_chunks()
        owners, values = _values(seq[begin:end], data.slice(begin, end - begin), column.type)
        wanted = rows["seq"].fill_null(pa.scalar(-1)).to_numpy()
        place = np.minimum(np.searchsorted(owners, wanted), len(owners) - 1)
        found = np.where(owners[place] == wanted, len(column) + place, np.arange(len(column)))
        whole = pa.concat_arrays([column, values]).take(pa.array(found, pa.int64()))
        rows = rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), whole)
    return rows


def may_be_long(stored: pa.DataType) -> bool:
    return pt.is_string(stored) or pt.is_binary(stored)


def _pieces(values: Array, cell: int, seq: Numbers) -> pa.Table:
    """The pieces of values none of which is null, cut by other offsets into the same bytes."""
    starts = _offsets(values)
    count = -(-np.diff(starts) // LONG)
    piece = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    offsets = np.append(np.repeat(starts[:-1], count) + piece * LONG, starts[-1])
    columns = [
        pa.array(np.repeat(seq, count)),
        pa.repeat(pa.scalar(cell, pa.int32()), len(piece)),
        pa.array(piece.astype(np.int32)),
        _over(offsets, values, pa.binary()),
    ]
    return pa.Table.from_arrays(columns, schema=PIECES)


def _values(seq: Numbers, data: Array, kind: pa.DataType) -> tuple[Numbers, Array]:
    """The numbers of the rows, ascending, and the value of each, from pieces in order."""
    owners, first = np.unique(seq, return_index=True)
    starts = _offsets(data)
    return owners, _over(np.append(starts[first], starts[-1]), data, kind)


def _offsets(array: Array) -> Numbers:
    """Where each value begins in the array's bytes, and where the last one ends."""
    offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, array.offset * 4)
    return offsets.astype(np.int64)


def _over(offsets: Numbers, array: Array, kind: pa.DataType) -> Array:
    """Values with other offsets into the same bytes."""
    buffers = [None, pa.py_buffer(offsets.astype(np.int32).tobytes()), array.buffers()[2]]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)
