"""Names for columns in annotations; what types they really have is known only when they are there."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

Array: TypeAlias = Any
"""Any `pa.Array`: what can be done with one depends on its type, which the stubs would have to be told."""

Type: TypeAlias = Any
"""Any `pa.DataType`, for the same reason; or the class of an array."""

Column: TypeAlias = "pa.ChunkedArray[Any]"
Field: TypeAlias = "pa.Field[Any]"

Numbers: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]
Mask: TypeAlias = np.ndarray[tuple[int], np.dtype[np.bool_]]
