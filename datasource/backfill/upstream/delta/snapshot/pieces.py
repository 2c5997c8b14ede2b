"""Batches in pieces that are not too large: views have a text that occurs many times once, plain columns many times."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from backfill.arrow.arrays import Indices

BATCH_BYTES: Final = 8 << 20
"""About how many bytes of rows are read at a time."""


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in pieces that take no more than about `BATCH_BYTES` once their texts are plain columns."""
    sizes = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        if column.type in (pa.string_view(), pa.binary_view()):
            sizes += _lengths(column)
    ends = np.cumsum(sizes)
    if not batch.num_rows or ends[-1] <= BATCH_BYTES:
        yield batch
        return
    starts = [0, *(np.flatnonzero(np.diff(ends // BATCH_BYTES)) + 1).tolist()]
    for start, end in pairwise([*starts, batch.num_rows]):
        yield batch.slice(start, end - start)


def _lengths(column: pa.Array[Any]) -> Indices:
    """How many bytes each text has (Arrow's columnar format, Variable-size Binary View Layout); anything for a null."""
    views: Any = column.buffers()[1]
    if views is None:
        return np.zeros(len(column), np.int64)
    found: Indices = np.frombuffer(views, np.int32)[::4][column.offset : column.offset + len(column)].astype(np.int64)
    return found
