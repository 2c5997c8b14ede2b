"""Long texts, blobs and lists of numbers of rows, in pieces that DuckDB stores and reads one by one.

DuckDB reads a column by vectors of 2,048 values, and stores one by row groups of 122,880. With 100 kB in each, finding
10 of 20 thousand rows took 2 s, and 1 took 0.6; from 4 kB on, a checkpoint wanted more memory than the 512 MB that it
had, and nothing could be written any more. In pieces of 512 bytes 100 of these rows are found in 0.1 s, they take a
third of the time to write, and 256 MB are enough. (Pieces of 1 kB needed more memory, and packed worse.)

In a row a long cell is null. Its pieces are found by the row's number, and make a value again without being copied one
by one: they lie one behind the other, as they did before they were cut. A list of numbers is cut as the bytes of its
numbers. It stays in its row if one of these is null; so does a list of anything else, however long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from backfill_state.upsert.columns import Array, Field, Mask, Numbers, Type

LONG: Final = 512
"""A text, blob or list of more bytes than this is kept apart, in pieces of this many."""

_MOST_BYTES: Final = (1 << 31) - 1
"""The most bytes of all lists of one column that are cut, as blobs; where they have more, none is cut."""

_COLUMNS: Final[list[Field]] = [
    pa.field("seq", pa.int64()),
    pa.field("cell", pa.int32()),
    pa.field("piece", pa.int32()),
    pa.field("data", pa.binary()),
]
PIECES: Final = pa.schema(_COLUMNS)
"""`seq` is the row's number and `cell` that of its column; `piece` counts from 0."""


def cut(rows: pa.Table, names: Sequence[str], seq: Numbers, *, lists: bool = True) -> tuple[pa.Table, pa.Table]:
    """The rows without the long cells of these columns, and their pieces; `seq` are the rows' numbers.

    `lists`: whether lists are cut as well.
    """
    pieces = [PIECES.empty_table()]
    for cell, name in enumerate(names):
        kind = rows.schema.field(name).type
        if not (is_cut(kind) if lists else may_be_long(kind)):
            continue
        column: Array = rows[name].combine_chunks()
        long = _long(column)
        if long.any():
            chosen = pa.array(long)
            pieces.append(_pieces(_as_bytes(column.filter(chosen)), cell, seq[long]))
            short: Array = pc.if_else(chosen, pa.scalar(None, column.type), column)
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


def is_cut(stored: Type) -> bool:
    """Whether a long cell of this stored type is kept apart."""
    return may_be_long(stored) or _width(stored) > 0


def may_be_long(stored: Type) -> bool:
    """Whether cells of this stored type are texts or blobs."""
    return pt.is_string(stored) or pt.is_binary(stored)


def _width(stored: Type) -> int:
    """How many bytes each number of a list has; 0 for all other types."""
    if not pt.is_list(stored) or not (pt.is_integer(stored.value_type) or pt.is_decimal(stored.value_type)):
        return 0
    return int(stored.value_type.bit_width) // 8


def _long(column: Array) -> Mask:
    """Which cells are cut."""
    width = _width(column.type)
    if not width:
        size: Array = pc.binary_length(column)
        return np.asarray(size.fill_null(0).to_numpy() > LONG, np.bool_)
    counted: Array = pc.list_value_length(column)
    lengths = counted.fill_null(0).to_numpy().astype(np.int64)
    long = np.asarray((lengths * width > LONG) & (lengths.sum() * width <= _MOST_BYTES), np.bool_)
    numbers: Array = pc.list_flatten(column)
    if numbers.null_count:
        owners = np.repeat(np.arange(len(column)), lengths)
        long[owners[numbers.is_null().to_numpy(zero_copy_only=False)]] = False
    return long


def _as_bytes(values: Array) -> Array:
    """Values none of which is null, as blobs over the same memory."""
    width = _width(values.type)
    if not width:
        return values
    numbers = values.values
    offsets = (_offsets(values) + numbers.offset) * width
    return _blobs(offsets - offsets[0], numbers.buffers()[1].slice(int(offsets[0])), pa.binary())


def _from_bytes(blobs: Array, kind: Type) -> Array:
    """The blobs made lists again, over a copy, which begins where a number may begin."""
    width = _width(kind)
    offsets = _offsets(blobs)
    data = np.frombuffer(blobs.buffers()[2], np.uint8)[offsets[0] : offsets[-1]].tobytes()
    count = (offsets - offsets[0]) // width
    numbers = pa.Array.from_buffers(kind.value_type, int(count[-1]), [None, pa.py_buffer(data)])
    ends = pa.py_buffer(count.astype(np.int32).tobytes())
    return pa.Array.from_buffers(kind, len(blobs), [None, ends], children=[numbers])


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


def _values(seq: Numbers, data: Array, kind: Type) -> tuple[Numbers, Array]:
    """The numbers of the rows, ascending, and the value of each, from pieces in order."""
    owners, first = np.unique(seq, return_index=True)
    starts = _offsets(data)
    ends = np.append(starts[first], starts[-1])
    return owners, _from_bytes(_over(ends, data, pa.binary()), kind) if _width(kind) else _over(ends, data, kind)


def _offsets(array: Array) -> Numbers:
    """Where each value begins in the array's bytes, and where the last one ends."""
    offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, array.offset * 4)
    return offsets.astype(np.int64)


def _over(offsets: Numbers, array: Array, kind: pa.DataType) -> Array:
    """Values with other offsets into the same bytes."""
    return _blobs(offsets, array.buffers()[2], kind)


def _blobs(offsets: Numbers, data: pa.Buffer, kind: pa.DataType) -> Array:
    return pa.Array.from_buffers(kind, len(offsets) - 1, [None, pa.py_buffer(offsets.astype(np.int32).tobytes()), data])
