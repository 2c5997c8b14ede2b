"""Arrays as array_send writes them, taken apart a whole column at a time.

What it writes (`array_send` in arrayfuncs.c), in numbers of 32 bits in network order: how many dimensions there are, 0
for an array without elements; whether there may be nulls; the elements' type; of each dimension its length and its
first index; then for each element its length, -1 for a null, and what its type's send function writes. Of the types
read here that is one number of fixed width. Dates and times are counted from 2000 on; infinity, the largest and the
smallest number, wraps around when they are counted from 1970 on, and lands far outside the years 1 to 9999.

An array without nulls has its elements at equal distances. In others each one tells where the next begins: that is
followed from all arrays' beginnings at once, twice as far with each step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from backfill.arrow.arrays import Indices, Mask
from backfill.upstream.postgres.values.flat import Elements, Flat, bitmap, flatten
from backfill.upstream.postgres.values.oids import Oid
from backfill.upstream.postgres.values.text import UnreadableTextError

_OF_NUMBER: Final = 4
_OF_ONE_DIMENSION: Final = 5 * _OF_NUMBER
"""How many bytes stand before the elements."""

_DAYS: Final = int(np.datetime64("2000-01-01", "D").astype(np.int64))
_MICROSECONDS: Final = int(np.datetime64("2000-01-01", "us").astype(np.int64))
_FROM_1970: Final[Mapping[int, int]] = {
    Oid.DATE: _DAYS,
    Oid.TIMESTAMP: _MICROSECONDS,
    Oid.TIMESTAMPTZ: _MICROSECONDS,
}
_SENT: Final[Mapping[int, np.dtype[Any]]] = {
    Oid.BOOL: np.dtype(np.uint8),
    Oid.INT2: np.dtype(np.int16),
    Oid.INT4: np.dtype(np.int32),
    Oid.INT8: np.dtype(np.int64),
    Oid.FLOAT4: np.dtype(np.float32),
    Oid.FLOAT8: np.dtype(np.float64),
    Oid.DATE: np.dtype(np.int32),
    Oid.TIMESTAMP: np.dtype(np.int64),
    Oid.TIMESTAMPTZ: np.dtype(np.int64),
}
"""For each type of elements, the number that is sent for one."""


class OtherElementsError(ValueError):
    """The elements are of the type with this OID, which is not the one that was expected."""


def unpack_arrays(packed: pa.Array[Any], of: int, to: pa.DataType) -> Elements:
    """The elements of arrays in this form, which are the values of a binary array, as values of type `to`.

    OtherElementsError unless all are of the type `of`; UnreadableTextError for arrays of more than one dimension, and
    for those whose first index is not 1.
    """
    flat = flatten(packed)
    types = _numbers(flat.data, flat.start + 2 * _OF_NUMBER)
    if (types != of).any():
        raise OtherElementsError(types[types != of][0])
    counts = _counts(flat)
    sent, from_1970 = _SENT[of], _FROM_1970.get(of)
    element = np.dtype({"names": ["value"], "formats": [sent.newbyteorder(">")], "offsets": [_OF_NUMBER]})
    longest = (flat.end - flat.start).max(initial=_OF_ONE_DIMENSION)
    # With no end Arrow 26 multiplies the largest number with the count of values, to reserve memory.
    body = flatten(pc.binary_slice(packed, _OF_ONE_DIMENSION, int(longest)))
    if len(body.data) == counts.sum() * element.itemsize:
        null = np.zeros(counts.sum(), np.bool_)
        values = body.data.view(element)["value"].astype(sent)
    else:
        at, null = _followed(body, counts, element.itemsize)
        values = np.zeros(len(at), sent)
        values[~null] = _windows(body.data, at[~null], element.itemsize).view(element)["value"].ravel()
    if from_1970 is not None:
        values += sent.type(from_1970)
    return Elements(flat.offsets(counts), flat.validity(), _as_arrow(values, null, to))


def _counts(flat: Flat) -> Indices:
    """How many elements each array has."""
    dimensions = _numbers(flat.data, flat.start)
    if (dimensions > 1).any():
        raise UnreadableTextError("an array of more than one dimension")
    one = np.flatnonzero(dimensions == 1)
    if (_numbers(flat.data, flat.start[one] + 4 * _OF_NUMBER) != 1).any():
        raise UnreadableTextError("an array whose first index is not 1")
    counts = np.zeros(len(dimensions), np.int64)
    counts[one] = _numbers(flat.data, flat.start[one] + 3 * _OF_NUMBER)
    return counts


def _followed(body: Flat, counts: Indices, size: int) -> tuple[Indices, Mask]:
    """Where each element begins, and whether it is null; one that is not takes `size` bytes."""
    unit = min(_OF_NUMBER, size - _OF_NUMBER)
    end = len(body.data) // unit
    lengths = np.ndarray(end - _OF_NUMBER // unit + 1, ">i4", body.data, strides=[unit])
    follows = np.full(end + 1, end)
    follows[: len(lengths)] = np.minimum(np.arange(len(lengths)) + np.where(lengths < 0, _OF_NUMBER, size) // unit, end)
    reached = np.zeros(end + 1, np.bool_)
    reached[body.start[counts > 0] // unit] = True
    steps = 1
    while steps < counts.max():
        reached[follows[np.flatnonzero(reached)]] = True
        follows, steps = follows[follows], steps * 2
    at = np.flatnonzero(reached[:end])
    if len(at) != counts.sum():
        raise UnreadableTextError("an array that is not as long as it says")
    return at * unit, lengths[at] < 0


def _as_arrow(values: NDArray[Any], null: Mask, to: pa.DataType) -> pa.Array[Any]:
    if pa.types.is_boolean(to):
        return pa.array(values != 0, to, mask=null)
    return pa.Array.from_buffers(to, len(values), [bitmap(~null), pa.py_buffer(values.data)])


def _numbers(data: NDArray[np.uint8], at: Indices) -> Indices:
    return _windows(data, at, _OF_NUMBER).view(">i4").ravel().astype(np.int64)


def _windows(data: NDArray[np.uint8], at: Indices, width: int) -> NDArray[np.uint8]:
    """A row of `width` bytes for each place in `at`: those that begin there."""
    found: NDArray[np.uint8] = data[at[:, np.newaxis] + np.arange(width)]
    return found
