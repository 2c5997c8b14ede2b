"""Batches as a keyed sink gets them, and what a Delta table holds after them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
from deltalake import DeltaTable

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
    """The rows, given without what they do not need; each has its place as `_sequence`."""
    return pa.Table.from_pylist([{"_commit_version": 1, "_sequence": at, **row} for at, row in enumerate(rows)], SCHEMA)


def row(change_type: str, a: int, b: str, v: str | None, unchanged: list[str] | None = None) -> Row:
    values = {"v": v, "w": v} | dict.fromkeys(unchanged or (), None)
    return {"a": a, "b": b, **values, "_change_type": change_type, "_unchanged_columns": unchanged}


class Rows:
    """What a sink asks of a DataFrame."""

    def __init__(self, *rows: Row) -> None:
        self.table = batch(*rows)

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        return self.table

    def having(self, **columns: Any) -> Rows:
        """The same rows with these columns: in place of those of the same names, or after the others."""
        having = Rows()
        having.table = self.table
        for name, values in columns.items():
            if name in self.table.column_names:
                having.table = having.table.set_column(self.table.column_names.index(name), name, pa.array(values))
            else:
                having.table = having.table.append_column(name, pa.array(values))
        return having


Apply: TypeAlias = Callable[[Rows, int], None]


def made_of(change_types: Sequence[str], **columns: Any) -> Rows:
    """A row for each change type, with these columns and no other of a table."""
    metadata = batch(*({"_change_type": change_type} for change_type in change_types))
    rows = Rows()
    rows.table = pa.table({**columns, **{name: metadata[name] for name in METADATA}})
    return rows


def content(table: Path) -> list[tuple[Any, ...]]:
    """Its rows in their order."""
    rows = DeltaTable(table).to_pyarrow_table().to_pylist()
    return sorted(tuple(row.values()) for row in rows)
