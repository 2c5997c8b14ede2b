"""The column values of many rows, found together.

TupleData (PostgreSQL manual, "Logical Replication Message Formats"): Int16 number of columns, then for each
column Byte1 kind: `n` null, `u` unchanged TOAST value that is not sent, `t` text: Int32 length and the bytes.
A row's columns have to be walked from left to right; all rows of a batch take each step together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from backfill.arrow.arrays import Mask
from backfill.upstream.postgres.decoder.messages import Messages, Positions, require
from backfill.upstream.postgres.values.flat import bitmap

ABSENT: Final = 0  # the message has no such tuple
NULL: Final = ord("n")
UNCHANGED: Final = ord("u")
TEXT: Final = ord("t")


@dataclass(frozen=True)
class Tuples:
    """For each wanted column and each row: its kind, and for TEXT the bytes `[start, end)` it takes.

    Arrays of shape (columns, rows). Along a column the spans never go backwards, whatever the kind. Where there are no
    tuples at all, the arrays cannot be written to, and take no memory for each column.
    """

    kind: NDArray[np.uint8]
    start: NDArray[np.int32]
    end: NDArray[np.int32]

    @staticmethod
    def absent(columns: int, message_start: Positions, *, everywhere: bool) -> Tuples:
        """No tuple in any row; `walk` writes those there are, unless all are absent `everywhere`. Rows without one have
        empty spans at `message_start`, so that spans do not go backwards.
        """
        shape = (columns, len(message_start))
        kind = np.broadcast_to(np.uint8(ABSENT), shape)
        start = np.broadcast_to(message_start.astype(np.int32), shape)
        return Tuples(kind, start, start) if everywhere else Tuples(kind.copy(), start.copy(), start.copy())

    def text(self, column: int, data: pa.Buffer) -> pa.Array[Any]:
        """The column's values; null unless TEXT."""
        rows = self.start.shape[1]
        present = self.kind[column] == TEXT
        if not present.any():
            return pa.nulls(rows, pa.binary())
        spans = np.empty(2 * rows, np.int32)
        spans[0::2], spans[1::2] = self.start[column], self.end[column]
        # Read as offsets, the spans make an array in which every second value lies between two of ours.
        every = pa.BinaryArray.from_buffers(pa.binary(), max(2 * rows - 1, 0), [None, pa.py_buffer(spans.data), data])
        values = every.take(pa.array(np.arange(0, 2 * rows, 2), pa.int64()))
        return pa.BinaryArray.from_buffers(pa.binary(), rows, [bitmap(present), *values.buffers()[1:]])

    def fill_unchanged(self, old: Tuples) -> None:
        """Fills in the unchanged values, which were not sent, from the old tuples that carry them."""
        known = (self.kind == UNCHANGED) & (old.kind == TEXT)
        if known.any():
            self.kind[known] = TEXT
            self.start[known], self.end[known] = old.start[known], old.end[known]


def walk(
    messages: Messages,
    at: Positions,
    rows: Positions,
    limit: Positions,
    targets: Sequence[int | None],
    into: Tuples,
) -> Positions:
    """Finds the columns of the tuples at `at`, which belong to `rows` of `into`; returns where they end.

    `targets` tells for each column of the tuple its place in `into`, or None. Nothing is found at or beyond
    `limit`, which lies inside the data.
    """
    require(messages.uint16(at) == len(targets), "a row has another number of columns than its table")
    at = at + 2
    for target in targets:
        kind = messages.uint8(at)
        text = kind == TEXT
        if text.all():
            start = at + 5
            end = start + messages.uint32(at + 1)
        else:
            require(text | (kind == NULL) | (kind == UNCHANGED), "a column is neither text, null nor unchanged")
            start = end = at + 1
            if text.any():
                start = at + np.where(text, 5, 1)
                end = start + np.where(text, messages.uint32(at + 1), 0)
        require(end <= limit, "a row is cut short")
        if target is not None:
            _put(into, target, rows, kind, start, end)
        at = end
    return at


def _put(into: Tuples, column: int, rows: Positions, kind: NDArray[np.uint8], start: Positions, end: Positions) -> None:
    if len(rows) == into.kind.shape[1]:  # then they are all rows in order: a copy instead of a scatter
        into.kind[column], into.start[column], into.end[column] = kind, start, end
    else:
        into.kind[column, rows], into.start[column, rows], into.end[column, rows] = kind, start, end


def names_where(mask: Mask, names: Sequence[str]) -> pa.Array[Any]:
    """For each row (second axis) the names (first axis) where `mask` is true; null where there are none."""
    count = mask.sum(axis=0)
    if not count.any():
        return pa.nulls(len(count), pa.list_(pa.string()))
    of_row = pa.array(np.nonzero(mask.T)[1], pa.int64())
    offsets = pa.array(np.concatenate([[0], np.cumsum(count)]), pa.int32())
    values = pa.array(names, pa.string()).take(of_row)
    return pa.ListArray.from_arrays(offsets, values, mask=pa.array(count == 0, pa.bool_()))
