"""How columns of any Arrow type are stored so that every value comes back as it was, bit by bit.

A stored column is of one of a few types that DuckDB, Arrow and Python hold alike:

| Arrow type                                    | stored as                                                         |
|-----------------------------------------------|-------------------------------------------------------------------|
| integers, bool, string, binary                | themselves                                                        |
| decimal128 with 0 <= scale                    | itself                                                            |
| float, date, time, timestamp, duration,       | the integer of its width that has the same bits: -0.0 and every   |
| month interval, decimal32, decimal64          | NaN stay themselves, and no end of a range is taken for infinity  |
| other decimals, day intervals                 | their bytes                                                       |
| large and view forms, fixed-size binary       | the plain form                                                    |
| struct                                        | a struct with fields f0, f1, ...; an empty one as true            |
| list, also large and fixed-size; map          | a list; of a map, of structs of key and item                      |
| null                                          | a bool that is null                                               |
| extension                                     | its storage                                                       |

Unions, dictionaries, run-end encoded columns, list views and lists of the fixed size 0 are refused by name. Rows are
kept as typed columns and not as one blob each: columns are made without a loop over rows, DuckDB packs them, and only
what is asked for is read.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from backfill_state.errors import StateLayoutError
from backfill_state.upsert.columns import Array, Numbers, Type

_INTEGERS: Final = {8: pa.uint8(), 16: pa.uint16(), 32: pa.int32(), 64: pa.int64()}
_UNSIGNED: Final = {32: pa.uint32(), 64: pa.uint64()}


def stored_type(column: str, arrow: pa.DataType) -> pa.DataType:
    """The type that a column is stored as; `column` is its name in the error if there is none."""
    if isinstance(arrow, pa.BaseExtensionType):
        return stored_type(column, arrow.storage_type)
    if pt.is_null(arrow):
        return pa.bool_()
    if pt.is_struct(arrow):
        fields = [pa.field(f"f{at}", stored_type(column, item.type)) for at, item in enumerate(arrow)]
        return pa.struct(fields) if fields else pa.bool_()
    if pt.is_map(arrow):
        return pa.list_(stored_type(column, _entries(arrow)))
    # Arrow ends the process when it takes a list of the fixed size 0 apart (a division by zero).
    if pt.is_list(arrow) or pt.is_large_list(arrow) or (pt.is_fixed_size_list(arrow) and arrow.list_size):
        return pa.list_(stored_type(column, arrow.value_type))
    return _stored_scalar(column, arrow)


def _stored_scalar(column: str, arrow: pa.DataType) -> pa.DataType:
    if pt.is_integer(arrow) or pt.is_boolean(arrow):
        return arrow
    if pt.is_string(arrow) or pt.is_large_string(arrow) or pt.is_string_view(arrow):
        return pa.string()
    if pt.is_binary(arrow) or pt.is_large_binary(arrow) or pt.is_binary_view(arrow) or pt.is_fixed_size_binary(arrow):
        return pa.binary()
    if pt.is_decimal128(arrow) and 0 <= arrow.scale <= arrow.precision:
        return arrow
    if pt.is_floating(arrow):
        return _UNSIGNED.get(arrow.bit_width, pa.uint16())
    if pt.is_decimal(arrow) or arrow == pa.month_day_nano_interval():
        return _INTEGERS.get(arrow.bit_width, pa.binary())
    if pt.is_temporal(arrow):
        return _INTEGERS[arrow.bit_width]
    raise StateLayoutError(
        f"column {column!r} has type {arrow}, which the upsert state cannot hold: it holds every type but unions, "
        "dictionaries, run-end encoded columns, list views and lists of the fixed size 0. Cast the column first"
    )


def store(array: Array, stored: Type) -> Array:
    """The array as it is stored; `stored` is what `stored_type` gives for its type."""
    arrow = array.type
    if isinstance(array, pa.ExtensionArray):
        return store(array.storage, stored)
    if pt.is_null(arrow):
        return pa.nulls(len(array), stored)
    if isinstance(array, pa.StructArray):
        return _store_struct(array, stored)
    if isinstance(array, pa.MapArray):
        # A map is a list underneath, but few functions take it for one.
        return store(array.cast(pa.list_(_entries(arrow))), stored)
    if pt.is_list(arrow) or pt.is_large_list(arrow) or pt.is_fixed_size_list(arrow):
        return _store_list(array, stored)
    if stored == arrow:
        return array
    if pt.is_primitive(stored) and not pt.is_decimal128(stored):
        return _reread(array, stored)
    if pt.is_decimal(arrow) or pt.is_interval(arrow):
        return _reread(array, pa.binary(arrow.bit_width // 8)).cast(pa.binary())
    return array.cast(stored)


def restore(array: Array, arrow: Type) -> Array:
    """The array that `store` was given, if its type was `arrow`."""
    if isinstance(arrow, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(arrow, restore(array, arrow.storage_type))
    if pt.is_null(arrow):
        return pa.nulls(len(array))
    if pt.is_struct(arrow):
        return _restore_struct(array, arrow)
    if pt.is_map(arrow):
        entries = _restore_struct(array.flatten(), _entries(arrow))
        children = [pa.array(_offsets(array), pa.int32()), entries.field(0), entries.field(1)]
        return pa.MapArray.from_arrays(*children, type=arrow, mask=array.is_null())
    if pt.is_fixed_size_list(arrow):
        return _restore_fixed_size(array, arrow)
    if pt.is_list(arrow) or pt.is_large_list(arrow):
        kind: Type = pa.ListArray if pt.is_list(arrow) else pa.LargeListArray
        offsets: Array = pa.array(_offsets(array), pa.int32() if pt.is_list(arrow) else pa.int64())
        items = restore(array.flatten(), arrow.value_type)
        return kind.from_arrays(offsets, items, type=arrow, mask=array.is_null())
    return _restore_scalar(array, arrow)


def _restore_scalar(array: Array, arrow: Type) -> Array:
    if array.type == arrow:
        return array
    if pt.is_primitive(array.type) and not pt.is_decimal128(array.type):
        return _reread(array, arrow)
    if pt.is_decimal(arrow) or pt.is_interval(arrow):
        return _reread(array.cast(pa.binary(arrow.bit_width // 8)), arrow)
    return array.cast(arrow)


def _entries(arrow: Type) -> pa.StructType:
    return pa.struct([arrow.key_field, arrow.item_field])


def _store_struct(array: Array, stored: Type) -> Array:
    if array.type.num_fields == 0:
        return pc.if_else(array.is_valid(), True, None).cast(stored)
    fields = [store(array.field(at), item.type) for at, item in enumerate(stored)]
    return pa.StructArray.from_arrays(fields, fields=list(stored), mask=array.is_null())


def _restore_struct(array: Array, arrow: Type) -> Array:
    if arrow.num_fields == 0:
        # An array without fields can be given its length by its buffers alone.
        validity = pa.array(array.is_valid()).buffers()[1]
        return pa.StructArray.from_buffers(arrow, len(array), [validity])
    # `flatten` and not `field`: what lies hidden under a null struct need not be a value of the type.
    fields = [restore(child, item.type) for child, item in zip(array.flatten(), arrow, strict=True)]
    return pa.StructArray.from_arrays(fields, fields=list(arrow), mask=array.is_null())


def _store_list(array: Array, stored: Type) -> Array:
    items = store(array.flatten(), stored.value_type)
    return pa.ListArray.from_arrays(pa.array(_offsets(array), pa.int32()), items, mask=array.is_null())


def _offsets(array: Array) -> Numbers:
    """Where each list begins among the values of all of them, and where the last one ends."""
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(array) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _restore_fixed_size(array: Array, arrow: Type) -> Array:
    size = arrow.list_size
    items = restore(array.flatten(), arrow.value_type)
    present = array.is_valid().to_numpy(zero_copy_only=False)
    places = np.repeat((np.cumsum(present) - 1) * size, size) + np.tile(np.arange(size), len(array))
    padded = items.take(pa.array(places, mask=np.repeat(~present, size)))
    return pa.FixedSizeListArray.from_arrays(padded, type=arrow, mask=array.is_null())


def _reread(array: Array, arrow: Type) -> Array:
    """The same bits under another type of the same width."""
    if array.type.num_buffers != 2 or array.type.bit_width != arrow.bit_width:
        raise TypeError(f"{array.type} cannot be read as {arrow}")
    return pa.Array.from_buffers(arrow, len(array), array.buffers(), offset=array.offset)
