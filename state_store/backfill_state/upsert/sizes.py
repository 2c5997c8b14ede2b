"""How many bytes a row takes: a figure of the data alone, the same in every store.

A value counts the bytes it holds: a number its width, a bool one, a text or a blob its length, a struct and a list
the sum of what is in them; a null none. How a store packs its rows, and how large its file is, does not count.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from backfill_state.upsert.columns import Array, Numbers

HEAD: Final = 16
"""Bytes of an entry's two order keys."""


def row_sizes(stored: pa.RecordBatch) -> Numbers:
    """The size of each row of stored columns."""
    total = np.zeros(stored.num_rows, np.int64)
    for column in stored.columns:
        total += value_sizes(column)
    return total


def value_sizes(array: Array) -> Numbers:
    """The size of each value of a stored column."""
    present = array.is_valid().to_numpy(zero_copy_only=False)
    if isinstance(array, pa.StructArray):
        fields = (value_sizes(array.field(at)) for at in range(array.type.num_fields))
        return np.where(present, sum(fields, np.zeros(len(array), np.int64)), 0)
    if isinstance(array, pa.ListArray):
        items = np.concatenate(([0], np.cumsum(value_sizes(array.flatten()))))
        lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
        ends = np.cumsum(lengths, dtype=np.int64)
        return np.asarray(items[ends] - items[ends - lengths], np.int64)
    if pt.is_string(array.type) or pt.is_binary(array.type):
        bytes_of: Array = pc.binary_length(array)
        return np.asarray(bytes_of.fill_null(0).to_numpy(zero_copy_only=False), np.int64)
    return np.where(present, max(1, array.type.bit_width // 8), 0)
