"""Placing keys whose order Arrow knows as well as the database does, and telling keys apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backfill.arrow.arrays import Indices, Mask, index, mask


def within(keys: pa.RecordBatch, after: pa.RecordBatch | None, upto: pa.RecordBatch | None) -> pa.BooleanArray:
    """For each key, whether `after < key <= upto` in the lexicographic order of its columns.

    The ends are batches of one key each; None is an open end.
    """
    inside = pa.repeat(pa.scalar(True), keys.num_rows)
    if after is not None:
        inside = pc.and_(inside, pc.invert(_at_most(keys, _values(after))))
    if upto is not None:
        inside = pc.and_(inside, _at_most(keys, _values(upto)))
    return inside


def passed(keys: pa.RecordBatch, bounds: pa.RecordBatch) -> Indices:
    """For each key, how many of the bounds are less than it; bounds ascend, and no key has a null.

    This is a binary search, so twice as many bounds take one step more.
    """
    low, high = np.zeros(keys.num_rows, np.int64), np.full(keys.num_rows, bounds.num_rows, np.int64)
    for _ in range(bounds.num_rows.bit_length()):
        # A key that has its place already keeps it.
        middle = np.minimum((low + high) // 2, bounds.num_rows - 1)
        before = mask(_at_most(keys, bounds.take(index(middle)).columns))
        low, high = np.where(before, low, middle + 1), np.where(before, middle, high)
    return low


def _values(bound: pa.RecordBatch) -> list[pa.Scalar[Any]]:
    return [column[0] for column in bound.columns]


def _at_most(keys: pa.RecordBatch, bound: Sequence[Any]) -> pa.BooleanArray:
    """key <= bound: from the last column to the first, since a column counts only where those before it are equal.

    The bound has for each column one value for all keys, or one for each key.
    """
    pairs = list(zip(keys.columns, bound, strict=True))
    result = pc.less_equal(*pairs[-1])
    for column, end in reversed(pairs[:-1]):
        result = pc.or_(pc.less(column, end), pc.and_(pc.equal(column, end), result))
    return result


def differ(one: pa.Array[Any], other: pa.Array[Any]) -> Mask:
    """Where two arrays of a key column's values differ. In a key all NaN are one value, as databases have it."""
    unequal = pc.not_equal(one, other)
    if pa.types.is_floating(one.type):
        unequal = pc.and_not(unequal, pc.and_(pc.is_nan(one), pc.is_nan(other)))
    return mask(unequal)


def sorting_by(names: Iterable[str], order: Literal["ascending", "descending"] = "ascending") -> Any:
    """The sort keys for Arrow. As a bare text, a name that begins with a dot would be a path."""
    return [(pc.field(name), order) for name in names]
