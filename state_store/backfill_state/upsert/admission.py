"""What every upsert state decides alike: whether a call fits, and its columns as they are stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backfill_state.errors import AnotherLayoutError, StateConflictError, StateLayoutError
from backfill_state.layout import described, differences
from backfill_state.upsert.codec import restore, store, stored_type
from backfill_state.upsert.columns import Array, Column, Numbers
from backfill_state.upsert.sizes import HEAD, row_sizes
from backfill_state.upsert.state import HEADS, Updates, UpsertLayout

T = TypeVar("T")

KEY: Final = "k"
ROW: Final = "v"


@dataclass(frozen=True)
class Stored:
    """The columns of a call as they are stored: keys as k0, k1, ..., rows as v0, v1, ..., and each line's size."""

    keys: pa.RecordBatch
    rows: pa.RecordBatch
    sizes: Numbers


def stored_schema(schema: pa.Schema, prefix: str) -> pa.Schema:
    """The stored columns of a key or of a row, by place: their names do not depend on the user's."""
    return pa.schema([pa.field(f"{prefix}{at}", stored_type(item.name, item.type)) for at, item in enumerate(schema)])


def stored_keys(layout: UpsertLayout, keys: pa.Table) -> pa.RecordBatch:
    """The key columns of a call."""
    _require("the keys", keys, layout.key)
    for column, field in zip(keys.columns, keys.schema, strict=True):
        if column.null_count:
            raise StateLayoutError(
                f"key column {field.name!r} is null in {column.null_count} lines; a key has no nulls"
            )
    return _stored(keys, KEY)


def stored_updates(layout: UpsertLayout, updates: Updates) -> Stored:
    """The columns of a `multi_put`; a deletion has a row of nulls."""
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
    return Stored(keys, rows, HEAD + row_sizes(keys) + row_sizes(rows))


def stored_output(layout: UpsertLayout, keys: pa.Table, rows: pa.Table, diffs: Column) -> Stored:
    """The columns of a `multi_merge`."""
    stored = stored_keys(layout, keys)
    _require("the rows", rows, layout.row)
    _require_lines(stored.num_rows, rows=rows)
    if diffs.type != pa.int64() or len(diffs) != stored.num_rows or diffs.null_count:
        raise StateLayoutError(f"there is a diff of int64 for each key, but here are {len(diffs)} of {diffs.type}")
    if not pc.all(pc.is_in(diffs, value_set=pa.array([-1, 1], pa.int64())), min_count=0).as_py():
        raise StateLayoutError("a diff is +1 for a row added or -1 for a row retracted, but one is neither")
    lines = _stored(rows, ROW)
    return Stored(stored, lines, HEAD + row_sizes(stored) + row_sizes(lines))


def restored(stored: pa.Table, schema: pa.Schema) -> pa.Table:
    """Stored columns as the user knows them."""
    columns = []
    for column, field in zip(stored.columns, schema, strict=True):
        chunks = [restore(chunk, field.type) for chunk in column.chunks]
        columns.append(pa.chunked_array(chunks, field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def require_extended(stored: UpsertLayout, given: UpsertLayout, where: str) -> None:
    """Refuses a state that is of another stream, or of other columns than those that the given ones begin with."""
    if not given.extends(stored):
        raise AnotherLayoutError(
            where,
            f"the upsert state is of another stream or of other columns ({differences(stored, given)}); give each "
            "stream a state of its own, and add columns after those that it has",
        )


def require_batch(batch: T | None, where: str) -> T:
    """The batch that is being written; refuses to write outside of one."""
    if batch is None:
        raise StateConflictError(
            where, "the upsert state is written in a batch only; call it inside of `with batch(...)`"
        )
    return batch


def require_no_batch(batch: object | None, where: str) -> None:
    """Refuses what would cut a batch in two."""
    if batch is not None:
        raise StateConflictError(where, "a batch is being written; end it first")


def require_consolidated(consolidating: bool, where: str) -> None:
    """Refuses to use a state of which a part is still to come."""
    if consolidating:
        raise StateConflictError(
            where,
            "the upsert state is being consolidated and a part of its output is still to come; give it the rest, or "
            "reset it to start over",
        )


def require_consolidatable(consolidating: bool, entries: int, where: str) -> None:
    """Refuses to mix output with a state that is complete."""
    if entries and not consolidating:
        raise StateConflictError(
            where, f"the upsert state is complete and holds {entries} keys; reset it to consolidate it from output"
        )


def _stored(table: pa.Table, prefix: str) -> pa.RecordBatch:
    arrays = [store(_one(column), item.name) for column, item in zip(table.columns, table.schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=stored_schema(table.schema, prefix))


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
