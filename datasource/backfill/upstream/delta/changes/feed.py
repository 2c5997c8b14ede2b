"""What commits did to rows, as changes in the layout of `backfill.changes`.

A commit of Delta has no order inside: its change data feed says which rows are gone and which are there now. So for
each key there is one change at the most: a row that is gone and one that is there now are an update, whether the feed
calls them `update_preimage` and `update_postimage` or, where a file was rewritten as a whole, `delete` and `insert`.
What is the same before and after is no change: so a rewritten file, a RESTORE or a MERGE gives what it changed, and no
more. An update that moves a key comes as a delete of the old one and an insert of the new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backfill.arrow.arrays import Indices, Mask, mask
from backfill.arrow.batches import as_one_batch
from backfill.arrow.sameness import same
from backfill.changes import DELETE, INSERT, OLD_NONE, OLD_ROW, UPDATE, changes_schema
from backfill.errors import TableError
from backfill.upstream.delta.changes.rows import THERE, TIME, VERSION, rows_schema
from backfill.upstream.delta.keys.columns import KeyColumns
from backfill.upstream.delta.keys.sorted_keys import not_unique, require_keys
from backfill.upstream.delta.keys.sorting import in_order
from backfill.upstream.delta.tables.ways_out import PAST_IT


def changes(rows: Iterable[pa.RecordBatch], columns: pa.Schema, key: KeyColumns) -> Iterator[pa.RecordBatch]:
    """The changes that these rows make (see `rows`), by commit and key: the same ones for the same rows."""
    held: pa.RecordBatch | None = None
    # What is gone comes before what is there instead.
    for found in in_order(_with_keys(rows, key), rows_schema(columns), [VERSION, *key.names, THERE]):
        batch = found if held is None else as_one_batch(pa.Table.from_batches([held, found]))
        # What is of the last row's key may go on in the next batch.
        whole = int(np.flatnonzero(~_follow(batch, key))[-1])
        held = batch.slice(whole)
        yield from _changes(batch.slice(0, whole), columns, key)
    if held is not None:
        yield from _changes(held, columns, key)


def _with_keys(rows: Iterable[pa.RecordBatch], key: KeyColumns) -> Iterator[pa.RecordBatch]:
    for batch in rows:
        try:
            require_keys(batch.select(key.names))
        except TableError as error:
            raise _stays_in_log(str(error)) from None
        yield batch


def _stays_in_log(problem: str) -> TableError:
    return TableError(
        f"in a commit whose changes are read, {problem}. That commit stays in the table's log, so then {PAST_IT}"
    )


def _changes(rows: pa.RecordBatch, columns: pa.Schema, key: KeyColumns) -> Iterator[pa.RecordBatch]:
    """One change for each commit and key in these rows, if it changes something; no batch where none does."""
    if not rows.num_rows:
        return
    there = mask(rows.column(THERE))
    follow = _follow(rows, key)
    # A key is gone once and there once at the most; first gone, then there.
    if (follow[1:] & (there[:-1] | ~there[1:])).any():
        raise _stays_in_log(str(not_unique()))
    begins = np.flatnonzero(~follow)
    pairs = np.append(follow[1:], False)[begins]
    row = pa.StructArray.from_arrays([rows.column(name) for name in columns.names], fields=list(columns))
    old = row.take(_places(begins, there[begins]))
    new = row.take(_places(begins + pairs, ~there[begins] & ~pairs))
    changed = np.ones(len(begins), np.bool_)
    changed[pairs] = ~same(old.filter(pa.array(pairs)), new.filter(pa.array(pairs)))
    op = np.where(pairs, UPDATE, np.where(there[begins], INSERT, DELETE)).astype(np.uint8)
    commit = rows.select([VERSION, TIME]).take(pa.array(begins, pa.int64()))
    arrays: list[pa.Array[Any]] = [
        pa.array(op),
        commit.column(VERSION),
        commit.column(TIME),
        commit.column(VERSION),
        pa.array(np.where(op == INSERT, OLD_NONE, OLD_ROW).astype(np.uint8)),
        new,
        old,
        pa.nulls(len(begins), pa.list_(pa.string())),
    ]
    found = pa.RecordBatch.from_arrays(arrays, schema=changes_schema(columns))
    if changed.any():
        yield found if changed.all() else found.filter(pa.array(changed))


def _places(rows: Indices, missing: Mask) -> pa.Int64Array:
    return pa.array(rows, pa.int64(), mask=missing)


def _follow(rows: pa.RecordBatch, key: KeyColumns) -> Mask:
    """For each row, whether it is of the commit and the key of the row before."""
    result = np.ones(rows.num_rows, np.bool_)
    result[0] = False
    for name in (VERSION, *key.names):
        column = rows.column(name)
        result[1:] &= mask(pc.equal(column[1:], column[:-1]))
    return result
