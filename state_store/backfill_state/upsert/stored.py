"""The columns of a call as they are stored, alike in every upsert state; what does not fit the layout is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backfill_state.errors import StateLayoutError
from backfill_state.layout import described
from backfill_state.upsert.codec import restore, store, stored_type
from backfill_state.upsert.columns import Array, Column, Numbers
from backfill_state.upsert.sizes import HEAD, row_sizes
from backfill_state.upsert.state import HEADS, MergeStats, Updates, UpsertLayout

KEY: Final = "k"
ROW: Final = "v"


@dataclass(frozen=True)
class StoredUpdates:
    """Updates with their columns as they are stored, and the size of each."""

    keys: pa.RecordBatch
    heads: pa.Table
    rows: pa.RecordBatch
    sizes: Numbers

    def __len__(self) -> int:
        return len(self.sizes)

    def of_lines(self, places: Numbers) -> StoredUpdates:
        """The updates at these places."""
        if len(places) == len(self):
            return self
        at = pa.array(places, pa.int64())
        return StoredUpdates(self.keys.take(at), self.heads.take(at), self.rows.take(at), self.sizes[places])


@dataclass(frozen=True)
class StoredOutput:
    """Lines of output with their columns as they are stored, and the size of each."""

    keys: pa.RecordBatch
    rows: pa.RecordBatch
    diffs: Column
    sizes: Numbers

    @property
    def stats(self) -> MergeStats:
        return MergeStats(len(self.sizes), int(self.sizes.sum()), pc.sum(self.diffs, min_count=0).as_py())


def stored_schema(schema: pa.Schema, prefix: str) -> pa.Schema:
    """The stored columns of a key (k0, k1, ...) or of a row (v0, v1, ...), whatever the user's names are."""
    return pa.schema([pa.field(f"{prefix}{at}", stored_type(item.name, item.type)) for at, item in enumerate(schema)])


def stored_keys(layout: UpsertLayout, keys: pa.Table) -> pa.RecordBatch:
    """The key columns of a call, as they are stored."""
    _require("the keys", keys, layout.key)
    for column, field in zip(keys.columns, keys.schema, strict=True):
        if column.null_count:
            raise StateLayoutError(
                f"key column {field.name!r} is null in {column.null_count} lines; a key has no nulls"
            )
    return _stored(keys, KEY)


def stored_updates(layout: UpsertLayout, updates: Updates) -> StoredUpdates:
    """The columns of a `multi_put`, as they are stored; a deletion has a row of nulls."""
    keys = stored_keys(layout, updates.keys)
    _require("the heads", updates.heads, HEADS)
    if any(column.null_count for column in updates.heads.columns):
        raise StateLayoutError("an update's order and whether its row is present are never null, but one is")
    _require("the rows", updates.rows, layout.row)
    _require_lines(keys.num_rows, heads=updates.heads, rows=updates.rows)
    present = updates.heads["present"].combine_chunks()
    places = pc.if_else(present, pa.array(np.arange(len(present))), pa.scalar(None, pa.int64()))
    rows = _stored(updates.rows, ROW)
    if not pc.all(present, min_count=0).as_py():
        rows = pa.RecordBatch.from_arrays([column.take(places) for column in rows.columns], schema=rows.schema)
    return StoredUpdates(keys, updates.heads, rows, _sizes(keys, rows))


def stored_output(layout: UpsertLayout, keys: pa.Table, rows: pa.Table, diffs: Column) -> StoredOutput:
    """The columns of a `multi_merge`, as they are stored."""
    found = stored_keys(layout, keys)
    _require("the rows", rows, layout.row)
    _require_lines(found.num_rows, rows=rows)
    if diffs.type != pa.int64() or len(diffs) != found.num_rows or diffs.null_count:
        raise StateLayoutError(f"there is a diff of int64 for each key, but here are {len(diffs)} of {diffs.type}")
    if not pc.all(pc.is_in(diffs, value_set=pa.array([-1, 1], pa.int64())), min_count=0).as_py():
        raise StateLayoutError("a diff is +1 for a row added or -1 for a row retracted, but one is neither")
    lines = _stored(rows, ROW)
    return StoredOutput(found, lines, diffs, _sizes(found, lines))


def restored(stored: pa.Table, schema: pa.Schema) -> pa.Table:
    """Stored columns, as the user knows them."""
    columns = []
    for column, field in zip(stored.columns, schema, strict=True):
        chunks = [restore(chunk, field.type) for chunk in column.chunks]
        columns.append(pa.chunked_array(chunks, field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _stored(table: pa.Table, prefix: str) -> pa.RecordBatch:
    schema = stored_schema(table.schema, prefix)
    arrays = [store(_one(column), item.type) for column, item in zip(table.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _sizes(keys: pa.RecordBatch, rows: pa.RecordBatch) -> Numbers:
    return HEAD + row_sizes(keys) + row_sizes(rows)


def _one(column: Column) -> Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays([pa.nulls(0, column.type), *column.chunks])


def _require(what: str, table: pa.Table, expected: pa.Schema) -> None:
    found, wanted = described(table.schema), described(expected)
    if found != wanted:
        raise StateLayoutError(f"{what} have columns ({found}), and the upsert state asks for ({wanted})")


def _require_lines(count: int, **tables: pa.Table) -> None:
    for name, table in tables.items():
        if table.num_rows != count:
            raise StateLayoutError(f"there are {count} keys and {table.num_rows} lines of {name}; each key has one")
