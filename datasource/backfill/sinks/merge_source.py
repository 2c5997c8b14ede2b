"""A batch's last rows as the source of a MERGE, under names of its own: a table may have a column `deleted`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from backfill.sinks.compacted import CompactedBatch

DELETED: Final = "deleted"
"""The column that says whether a row is to be deleted."""


def merge_source(last: CompactedBatch, names: Sequence[str]) -> pa.Table:
    """These columns as `column_name` calls them, DELETED, and the masks of `last.kept` as `kept_name` calls them."""
    rows = last.rows.select(names).rename_columns([column_name(at) for at in range(len(names))])
    rows = rows.append_column(DELETED, pa.array(last.deleted))
    for at, mask in enumerate(last.kept.values()):
        rows = rows.append_column(kept_name(at), pa.array(mask))
    return rows.combine_chunks()


def column_name(at: int) -> str:
    return f"c{at}"


def kept_name(at: int) -> str:
    return f"kept{at}"
