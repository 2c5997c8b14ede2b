"""Which changes go forward, and as what. Pure Arrow kernels.

To *mark* a change is to decide whether the part of the table already emitted is concerned (RisingWave
`mark_chunk_ref_by_vnode`). The two halves of a change are marked each on its own key:

| change                     | old key emitted | new key emitted | goes forward as                                  |
|----------------------------|-----------------|-----------------|--------------------------------------------------|
| insert                     |                 | yes             | insert                                           |
| delete                     | yes             |                 | delete                                           |
| update, same key           | yes             | yes             | update_preimage if known, update_postimage       |
| update that moves the key  | yes             | yes             | delete of the old key, insert of the new         |
|                            | yes             | no              | delete of the old key                            |
|                            | no              | yes             | insert of the new key                            |

What is not emitted yet is left out: the snapshot will show it (RisingWave `normalize_unmatched_updates`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from backfill.changes import DELETE, INSERT, OLD_NONE, OLD_ROW, TRUNCATE, UPDATE

Mask: TypeAlias = npt.NDArray[np.bool_]
Indices: TypeAlias = npt.NDArray[np.int64]
Column: TypeAlias = "pa.Array[Any]"

Forwarded: TypeAlias = Callable[[pa.RecordBatch, Indices], Mask]
"""For keys (a batch of the key columns) and the rows of the changes they belong to: which go forward."""

CHANGE_TYPES: Final = ("insert", "update_preimage", "update_postimage", "delete", "truncate")
_INSERT, _PREIMAGE, _POSTIMAGE, _DELETE, _TRUNCATE = range(len(CHANGE_TYPES))

MARKED_COLUMNS: Final = ("row", "change_type", "version", "timestamp", "unchanged")


def mark(changes: pa.RecordBatch, *, key: Sequence[str], forwarded: Forwarded, truncates: bool) -> pa.RecordBatch:
    """The rows that go forward, in commit order, as `row`, `change_type`, `version`, `timestamp`, `unchanged`.

    `changes` has the layout of `backfill.changes`. `forwarded` is called at most once. Truncations go forward as a
    row of nulls if `truncates`, and are left out otherwise.
    """
    op = changes["op"].to_numpy()
    old_kind = changes["old_kind"].to_numpy()
    new, old = changes["new"], changes["old"]

    update = op == UPDATE
    moves = update & (old_kind != OLD_NONE)
    if moves.any():
        moves[moves] = _keys_differ(new, old, key, np.flatnonzero(moves))
    by_new = (op == INSERT) | update
    by_old = (op == DELETE) | moves

    new_rows, old_rows = np.flatnonzero(by_new), np.flatnonzero(by_old)
    passes = forwarded(_keys(new, old, key, new_rows, old_rows), np.concatenate([new_rows, old_rows]))
    new_passes, old_passes = np.zeros(len(op), np.bool_), np.zeros(len(op), np.bool_)
    new_passes[new_rows] = passes[: len(new_rows)]
    old_passes[old_rows] = passes[len(new_rows) :]

    preimages = update & ~moves & (old_kind == OLD_ROW) & new_passes
    first = old_passes | preimages | ((op == TRUNCATE) & truncates)
    first_type = np.where(preimages, _PREIMAGE, np.where(op == TRUNCATE, _TRUNCATE, _DELETE))
    second_type = np.where(update & ~moves, _POSTIMAGE, _INSERT)
    return _assemble(changes, np.flatnonzero(first), first_type, np.flatnonzero(new_passes), second_type)


def _keys_differ(new: Column, old: Column, key: Sequence[str], rows: Indices) -> Mask:
    differ = np.zeros(len(rows), np.bool_)
    for name in key:
        before, after = pc.struct_field(old, name).take(_index(rows)), pc.struct_field(new, name).take(_index(rows))
        differ |= pc.not_equal(before, after).to_numpy(zero_copy_only=False)
    return differ


def _keys(new: Column, old: Column, key: Sequence[str], new_rows: Indices, old_rows: Indices) -> pa.RecordBatch:
    columns = []
    for name in key:
        after = _rows(pc.struct_field(new, name), new_rows)
        columns.append(
            pa.concat_arrays([after, pc.struct_field(old, name).take(_index(old_rows))]) if len(old_rows) else after
        )
    return pa.RecordBatch.from_arrays(columns, names=list(key))


def _index(rows: Indices) -> pa.Int64Array:
    return pa.array(rows, pa.int64())


def _rows(array: Column, rows: Indices) -> Column:
    """The array's values at these places, each of which stands there once, in order."""
    return array if len(rows) == len(array) else array.take(_index(rows))


def _assemble(
    changes: pa.RecordBatch, first: Indices, first_type: Indices, second: Indices, second_type: Indices
) -> pa.RecordBatch:
    """First halves (of rows before) and second halves (of rows after) in the order of their changes."""
    nothing_unchanged = pa.nulls(len(first), changes.schema.field("unchanged").type)
    unchanged = _rows(changes["unchanged"], second)
    row = _rows(changes["new"], second)
    version, timestamp = _rows(changes["version"], second), _rows(changes["timestamp"], second)
    kind = second_type[second]
    if len(first):
        order = np.argsort(np.concatenate([first * 2, second * 2 + 1]), kind="stable")
        row = pa.concat_arrays([changes["old"].take(_index(first)), row]).take(_index(order))
        unchanged = pa.concat_arrays([nothing_unchanged, unchanged]).take(_index(order))
        # A change stands here once, twice or not at all, so `_rows` with its look at the length would not do.
        source = _index(np.concatenate([first, second])[order])
        version, timestamp = changes["version"].take(source), changes["timestamp"].take(source)
        kind = np.concatenate([first_type[first], kind])[order]
    types = pa.array(CHANGE_TYPES, pa.string()).take(_index(kind))
    return pa.RecordBatch.from_arrays(
        [row, types, version, timestamp, unchanged],
        names=list(MARKED_COLUMNS),
    )
