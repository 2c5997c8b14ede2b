"""Which values are equal in every bit, and which keys are one to a database; pure Arrow kernels."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backfill.arrow.arrays import Indices, Mask, mask

Column: TypeAlias = "pa.Array[Any]"

_BITS: Final = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}


def same(one: Column, other: Column) -> Mask:
    """For each place, whether the two columns of one type hold the same value there; null is the same as null.

    A NaN is the same as itself, and 0.0 is not the same as -0.0.
    """
    missing = mask(one.is_null()), mask(other.is_null())
    return (missing[0] & missing[1]) | (~missing[0] & ~missing[1] & _equal(one, other))


def _equal(one: Column, other: Column) -> Mask:
    """As `same` where neither value is null; where one is, the result means nothing."""
    kind = one.type
    if pa.types.is_struct(kind):
        result = np.ones(len(one), np.bool_)
        for field, its_other in zip(_fields(one), _fields(other), strict=True):
            result &= same(field, its_other)
        return result
    if pa.types.is_map(kind):
        entries = pa.list_(pa.struct([pa.field("key", kind.key_type), pa.field("value", kind.item_type)]))
        return _equal_lists(one.cast(entries), other.cast(entries))
    if pa.types.is_list(kind):
        return _equal_lists(one, other)
    if pa.types.is_null(kind) or pa.types.is_interval(kind):  # Arrow cannot compare these.
        coded: Any = pc.dictionary_encode(pa.concat_arrays([one, other]))
        one, other = coded.indices[: len(one)], coded.indices[len(one) :]
    if kind in _BITS:
        one, other = one.view(_BITS[kind]), other.view(_BITS[kind])
    return mask(pc.equal(one, other))


def _fields(structs: Any) -> list[Column]:
    """The fields of structs, made all at once: `pc.struct_field` makes them all for each one that it returns."""
    found: list[Column] = structs.flatten()
    return found


def _equal_lists(one: Column, other: Column) -> Mask:
    lengths = [_lengths(one), _lengths(other)]
    result: Mask = lengths[0] == lengths[1]
    valid = mask(one.is_valid()) & mask(other.is_valid())
    compared = np.flatnonzero(result & valid)
    places = pa.array(compared, pa.int64())
    owner = np.repeat(compared, lengths[0][compared])
    items = [pc.list_flatten(each.take(places)) for each in (one, other)]
    result[owner[~same(items[0], items[1])]] = False
    return result


def _lengths(lists: Column) -> Indices:
    found: Column = pc.list_value_length(lists)
    return found.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)


def canonical(keys: pa.RecordBatch) -> pa.RecordBatch:
    """The keys with -0.0 as 0.0, and one NaN: to a database they are one key, and its log may carry either."""
    return pa.RecordBatch.from_arrays(list(map(_canonical, keys.columns)), schema=keys.schema)


def _canonical(column: pa.Array[Any]) -> pa.Array[Any]:
    if not pa.types.is_floating(column.type):
        return column
    given: Any = column
    nan, zero = (pa.scalar(value, given.type) for value in (np.nan, 0.0))
    found: pa.Array[Any] = pc.if_else(pc.is_nan(given), nan, pc.add(given, zero))
    return found
