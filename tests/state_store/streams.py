"""Small streams to store, and what a store says of one, as plain values."""

from __future__ import annotations

from typing import Any, TypeAlias

import pyarrow as pa

from backfill_state import Barrier, ProgressStore, StreamIdentity

Row: TypeAlias = tuple[Any, ...]
"""A row of progress or of bounds, with values of the key's types."""


def key_of(**columns: pa.DataType) -> pa.Schema:
    return pa.schema(list(columns.items()))


KEY = key_of(region=pa.string(), id=pa.int64())


def stream(name: str = "s1", key: pa.Schema = KEY, **changes: Any) -> StreamIdentity:
    facts: dict[str, Any] = {
        "stream_id": name,
        "upstream": "postgresql",
        "system": "7412345678901234567",
        "table": "public.orders",
        "table_id": "16384",
        "key": key,
        "properties": (("slot", "backfill_s1"), ("publication", "backfill_orders")),
    }
    return StreamIdentity(**{**facts, **changes})


def progress_table(rows: list[Row], key: pa.Schema = KEY) -> pa.Table:
    """Makes a table of rows of `vnode, key..., backfill_finished, row_count`."""
    return table(rows, [pa.int32(), *key.types, pa.bool_(), pa.int64()], ["vnode", *key.names, *_REST])


def bounds_table(rows: list[Row], key: pa.Schema = KEY) -> pa.Table:
    """Makes a table of rows of `vnode, key...`."""
    return table(rows, [pa.int32(), *key.types], ["vnode", *key.names])


def table(rows: list[Row], types: list[pa.DataType], names: list[str]) -> pa.Table:
    columns = [pa.array([row[at] for row in rows], item) for at, item in enumerate(types)]
    return pa.Table.from_arrays(columns, names=names)


def barrier(epoch: int, *rows: Row, offset: str | None = None, key: pa.Schema = KEY) -> Barrier:
    text = f'{{"epoch":{epoch}}}' if offset is None else offset
    return Barrier(epoch, text, progress_table(list(rows), key))


def rows_of(read: pa.Table) -> list[Row]:
    return list(zip(*(column.to_pylist() for column in read.columns), strict=True))


def everything(store: ProgressStore) -> tuple[object, ...]:
    """Returns all that can be read from a store."""
    progress, bounds = store.progress(), store.bounds()
    return (
        store.identity(),
        store.epoch(),
        store.offset(),
        (progress.schema, rows_of(progress)),
        (bounds.schema, rows_of(bounds)),
    )


_REST = ["backfill_finished", "row_count"]
