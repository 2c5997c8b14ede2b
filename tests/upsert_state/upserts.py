"""Small updates to store, and what an upsert state says of them, as plain values."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import duckdb
import pyarrow as pa

from backfill_state.upsert import DuckDBUpsertState, Found, PutStats, Updates, UpsertLayout, UpsertState

Cells: TypeAlias = tuple[Any, ...]
"""The cells of a key or of a row, of the layout's types."""

Update: TypeAlias = tuple[Cells, int, int, Cells | None]
"""Key, order key, its tie-break, and the row; None deletes."""


def columns_of(*columns: tuple[str, pa.DataType]) -> pa.Schema:
    return pa.schema([pa.field(name, arrow) for name, arrow in columns])


LAYOUT = UpsertLayout(
    "s1",
    columns_of(("region", pa.string()), ("id", pa.int64())),
    columns_of(("name", pa.string()), ("amount", pa.float64())),
)


def columns(rows: list[Cells], schema: pa.Schema) -> pa.Table:
    return pa.table([pa.array([row[at] for row in rows], item.type) for at, item in enumerate(schema)], schema=schema)


def keys_of(keys: list[Cells], layout: UpsertLayout = LAYOUT) -> pa.Table:
    return columns(keys, layout.key)


def rows_of(rows: list[Cells | None], layout: UpsertLayout = LAYOUT) -> pa.Table:
    nothing = (None,) * len(layout.row)
    return columns([nothing if row is None else row for row in rows], layout.row)


def updates(*given: Update, layout: UpsertLayout = LAYOUT) -> Updates:
    heads = pa.table(
        {
            "order_key": pa.array([order for _, order, _, _ in given], pa.int64()),
            "order_tie": pa.array([tie for _, _, tie, _ in given], pa.int64()),
            "present": pa.array([row is not None for *_, row in given], pa.bool_()),
        }
    )
    return Updates(keys_of([key for key, *_ in given], layout), heads, rows_of([row for *_, row in given], layout))


def put(state: UpsertState, token: str, *given: Update) -> PutStats:
    """Makes one call, in a batch of its own."""
    with state.batch(token):
        return state.multi_put(updates(*given, layout=state.layout))


def fill(path: Path) -> None:
    """Makes a file with one row."""
    with DuckDBUpsertState(path, LAYOUT) as state:
        put(state, "t", (("eu", 1), 1, 0, ("x", 1.0)))


def diffs_of(*diffs: int) -> pa.ChunkedArray[Any]:
    return pa.chunked_array([pa.array(diffs, pa.int64())])


def entries(state: UpsertState, *keys: Cells) -> list[tuple[Any, ...]]:
    """Returns `(order key, tie, present, size, row)` of each key."""
    return entries_of(state.multi_get(keys_of(list(keys), state.layout)))


def entries_of(found: Found) -> list[tuple[Any, ...]]:
    heads = zip(*(column.to_pylist() for column in found.entries.columns), strict=True)
    rows = zip(*(column.to_pylist() for column in found.rows.columns), strict=True)
    return [(*head, row) for head, row in zip(heads, rows, strict=True)]


def rows_at(state: UpsertState, *keys: Cells) -> list[Cells]:
    """Returns the row of each key, with nulls alone where there is none."""
    return [entry[-1] for entry in entries(state, *keys)]


def asked(path: Path, query: str) -> list[tuple[Any, ...]]:
    """Queries the file itself, while no state has it open."""
    with duckdb.connect(str(path), read_only=True) as plain:
        return plain.execute(query).fetchall()
