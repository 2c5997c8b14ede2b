"""Keyed targets that follow a stream: functions for `foreachBatch` that apply each batch once.

postgres        a table of PostgreSQL
delta           a Delta table
compacted       from a batch to the last row of each key
merge_source    those rows as the source of a MERGE
applied         whether a batch has been applied already
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa


class Batch(Protocol):
    """All that the sinks know of Spark's DataFrame."""

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        ...
