"""Selections of rows as NumPy arrays, and how they are converted from and to Arrow's."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Mask: TypeAlias = npt.NDArray[np.bool_]
"""For each row, whether it is selected."""

Indices: TypeAlias = npt.NDArray[np.int64]
"""The numbers of the selected rows, from 0 on."""


def mask(column: Any) -> Mask:
    """The rows in which a column of booleans, chunked or not, is true; null counts as false."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    found: Mask = whole.fill_null(False).to_numpy(zero_copy_only=False)
    return found


def index(rows: Indices) -> pa.Int64Array:
    """Row numbers as the array that Arrow's `take` wants."""
    return pa.array(rows, pa.int64())
