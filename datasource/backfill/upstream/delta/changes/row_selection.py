"""Some rows of a Parquet file, by their places in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from backfill.arrow.arrays import Indices, Mask
from backfill.arrow.batches import coalesced
from backfill.upstream.delta.files.footers import column_bytes

_BATCH_ROWS: Final = 16_384
_BATCH_BYTES: Final = 8 << 20
_DECODED_ROWS: Final = 2_048
"""How many rows are decoded at a time: a text that occurs many times may be in the file only once, so the file's size
does not tell how many rows are too many.
"""


@dataclass(frozen=True, slots=True)
class RowSelection:
    """Which rows of a file are read: those at these places, or if not `taken` all others. The places ascend."""

    places: Indices
    taken: bool

    @property
    def is_none(self) -> bool:
        """Whether no row is chosen, whatever the file has."""
        return self.taken and not len(self.places)

    def some(self, at: int, count: int) -> bool:
        """Whether any of the `count` rows from the place `at` on may be among them."""
        first, end = np.searchsorted(self.places, (at, at + count))
        return bool(end > first) or not self.taken

    def mask(self, at: int, count: int) -> Mask:
        """Which of the `count` rows from the place `at` on are among them."""
        result = np.full(count, not self.taken)
        first, end = np.searchsorted(self.places, (at, at + count))
        result[self.places[first:end] - at] = self.taken
        return result


def batches(parquet: pq.ParquetFile, columns: list[str], chosen: RowSelection) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Batches of the file that may have chosen rows, each with its place."""
    at = 0
    for group in range(parquet.num_row_groups):
        end = at + parquet.metadata.row_group(group).num_rows
        if chosen.some(at, end - at):
            for batch in _decoded(parquet, group, columns):
                yield at, batch
                at += batch.num_rows
        at = end


def _decoded(parquet: pq.ParquetFile, group: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a row group, decoded few at a time and put together to no more than about `_BATCH_BYTES`."""
    found = parquet.metadata.row_group(group)
    rows = _BATCH_BYTES * found.num_rows // max(1, column_bytes(found, set(columns)))
    decoded = parquet.iter_batches(max(1, min(_DECODED_ROWS, rows)), row_groups=[group], columns=columns)
    return coalesced(decoded, _BATCH_ROWS, _BATCH_BYTES)
