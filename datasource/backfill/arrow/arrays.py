"""Which rows, in NumPy's arrays, and the way between these and Arrow's."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Mask: TypeAlias = npt.NDArray[np.bool_]
"""For each row whether it is one of them."""

Indices: TypeAlias = npt.NDArray[np.int64]
"""The places of rows, from 0 on."""


def mask(column: Any) -> Mask:
    """Where a column of booleans, chunked or not, is true; null is not."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    found: Mask = whole.fill_null(False).to_numpy(zero_copy_only=False)
    return found


def index(rows: Indices) -> pa.Int64Array:
    """These places as `take` wants them."""
    return pa.array(rows, pa.int64())
