"""Batches as a keyed sink gets them, and what a Delta table holds after them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
from deltalake import DeltaTable

from tests.collected import Rows

FIELDS: list[tuple[str, pa.DataType]] = [
    ("a", pa.int64()),
    ("b", pa.string()),
    ("v", pa.string()),
    ("w", pa.string()),
    ("_change_type", pa.string()),
    ("_commit_version", pa.int64()),
    ("_sequence", pa.int64()),
    ("_unchanged_columns", pa.list_(pa.string())),
]
SCHEMA = pa.schema(FIELDS)
METADATA = ("_change_type", "_commit_version", "_sequence")
Row = dict[str, Any]
TRUNCATE: Row = {"_change_type": "truncate"}


def batch(*rows: Row) -> pa.Table:
    """Makes a batch of rows, which leave out what they do not need; the place of each is its `_sequence`."""
    return pa.Table.from_pylist([{"_commit_version": 1, "_sequence": at, **row} for at, row in enumerate(rows)], SCHEMA)


def row(change_type: str, a: int, b: str, v: str | None, unchanged: list[str] | None = None) -> Row:
    values = {"v": v, "w": v} | dict.fromkeys(unchanged or (), None)
    return {"a": a, "b": b, **values, "_change_type": change_type, "_unchanged_columns": unchanged}


def batch_of(*rows: Row) -> Rows:
    return Rows(batch(*rows))


Apply: TypeAlias = Callable[[Rows, int], None]


def made_of(change_types: Sequence[str], **columns: Any) -> Rows:
    """Makes a row for each change type, with these columns and the metadata alone."""
    metadata = batch(*({"_change_type": change_type} for change_type in change_types))
    return Rows(pa.table({**columns, **{name: metadata[name] for name in METADATA}}))


def content(table: Path) -> list[tuple[Any, ...]]:
    """Returns the rows of a Delta table, sorted."""
    rows = DeltaTable(table).to_pyarrow_table().to_pylist()
    return sorted(tuple(row.values()) for row in rows)
