"""The values of a string or binary array as one run of bytes, for kernels that look at all bytes at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from backfill.arrow.arrays import mask


@dataclass(frozen=True)
class Flat:
    """Value `i` of those that are not null is the bytes `[start[i], end[i])` of `data`.

    The values follow each other without a gap and fill `data`. `valid` has one entry for each row of the array.
    """

    data: NDArray[np.uint8]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    valid: NDArray[np.bool_]

    def offsets(self, lengths: NDArray[np.int64]) -> NDArray[np.int32]:
        """The offsets of an array with a row of this length in place of each value, and nothing for each null."""
        of_row = np.zeros(len(self.valid) + 1, np.int64)
        of_row[1:][self.valid] = lengths
        return np.cumsum(of_row).astype(np.int32)

    def validity(self) -> pa.Buffer | None:
        """The rows' validity as Arrow keeps it."""
        return bitmap(self.valid)


@dataclass(frozen=True)
class Elements:
    """List `i` has the elements `[offsets[i], offsets[i + 1])` of `values`; `validity` is the lists'."""

    offsets: NDArray[np.int32]
    validity: pa.Buffer | None
    values: pa.Array[Any]

    def lists(self, to: pa.DataType) -> pa.Array[Any]:
        """The lists themselves, of a type whose elements are as `values` are."""
        offsets = pa.py_buffer(self.offsets.data)
        return pa.Array.from_buffers(to, len(self.offsets) - 1, [self.validity, offsets], children=[self.values])


def bitmap(valid: NDArray[np.bool_]) -> pa.Buffer | None:
    """One bit for each value; None if all are valid."""
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little").data)


def flatten(text: pa.Array[Any]) -> Flat:
    """The array's values; their bytes are copied only where there are nulls among them."""
    valid = mask(text.is_valid())
    # A null may stand over bytes that mean nothing; dropping nulls also makes the rest compact.
    values = text.drop_null() if text.null_count else text
    offsets = _offsets(values)
    content = values.buffers()[2]
    data = np.frombuffer(memoryview(content), np.uint8) if content is not None else np.empty(0, np.uint8)
    edges = offsets.astype(np.int64) - offsets[0]
    return Flat(data[offsets[0] : offsets[-1]], edges[:-1], edges[1:], valid)


def _offsets(values: pa.Array[Any]) -> NDArray[np.int32]:
    buffer = values.buffers()[1]
    if len(values) == 0 or buffer is None:  # then the buffer may be left out
        return np.zeros(1, np.int32)
    return np.frombuffer(memoryview(buffer), np.int32)[values.offset : values.offset + len(values) + 1]
