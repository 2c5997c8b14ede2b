"""Which rows, in NumPy's arrays, and their way into Arrow."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Mask: TypeAlias = npt.NDArray[np.bool_]
"""For each row whether it is one of them."""

Indices: TypeAlias = npt.NDArray[np.int64]
"""The places of rows, from 0 on."""


def index(rows: Indices) -> pa.Int64Array:
    """These places as `take` wants them."""
    return pa.array(rows, pa.int64())
