"""Which changes go forward, and as what. Pure Arrow kernels.

To *mark* a change is to decide whether it concerns the part of the table already emitted (RisingWave
`mark_chunk_ref_by_vnode`). The two halves of a change are marked separately, each by its own key:

| change                     | old key emitted | new key emitted | goes forward as                                  |
|----------------------------|-----------------|-----------------|--------------------------------------------------|
| insert                     |                 | yes             | insert                                           |
| delete                     | yes             |                 | delete                                           |
| update, same key           | yes             | yes             | update_preimage if known, update_postimage       |
| update that moves the key  | yes             | yes             | delete of the old key, insert of the new         |
|                            | yes             | no              | delete of the old key                            |
|                            | no              | yes             | insert of the new key                            |

A half whose key is not emitted yet is left out: the snapshot will show it (RisingWave `normalize_unmatched_updates`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from backfill.arrow.arrays import Indices, Mask, index
from backfill.arrow.order import differ
from backfill.changes import DELETE, INSERT, OLD_NONE, OLD_ROW, TRUNCATE, UPDATE, column_of
from backfill.errors import TruncateError
from backfill.options import OnTruncate

Forwarded: TypeAlias = Callable[[pa.RecordBatch, Indices], Mask]
"""Given keys (a batch of the key columns) and the numbers of the changes they belong to, tells which go forward."""

CHANGE_TYPES: Final = ("insert", "update_preimage", "update_postimage", "delete", "truncate")
INSERTED, PREIMAGE, POSTIMAGE, REMOVED, _TRUNCATE = range(len(CHANGE_TYPES))

MARKED_COLUMNS: Final = ("row", "change_type", "version", "timestamp", "unchanged")


@dataclass(frozen=True, slots=True)
class Halves:
    """Which halves of changes go forward, with a place in each mask for each change.

    The old half removes a row; only deletes have one, and updates that move their key. The new half brings a row.
    """

    old: Mask
    new: Mask
    moves: Mask
    """Which changes are updates that move their key, whether they go forward or not."""

    @property
    def nothing(self) -> bool:
        return not (self.old.any() or self.new.any())

    @property
    def change_count(self) -> int:
        """The number of changes of which at least one half goes forward."""
        return int(np.count_nonzero(self.old | self.new))

    def of(self, which: slice) -> Halves:
        """The halves of some of the changes."""
        return Halves(self.old[which], self.new[which], self.moves[which])


def mark(changes: pa.RecordBatch, *, key: Sequence[str], forwarded: Forwarded) -> Halves:
    """Marks changes in the layout of `backfill.changes`: returns which of their halves go forward."""
    op, old_kind = changes["op"].to_numpy(), changes["old_kind"].to_numpy()
    update = op == UPDATE
    moves = update & (old_kind != OLD_NONE)
    if moves.any():
        moves[moves] = _keys_differ(changes, key, np.flatnonzero(moves))
    old_rows, new_rows = np.flatnonzero((op == DELETE) | moves), np.flatnonzero((op == INSERT) | update)
    passes = forwarded(keys_of(changes, key, old_rows, new_rows), np.concatenate([old_rows, new_rows]))
    old_passes, new_passes = np.zeros(len(op), np.bool_), np.zeros(len(op), np.bool_)
    old_passes[old_rows] = passes[: len(old_rows)]
    new_passes[new_rows] = passes[len(old_rows) :]
    return Halves(old_passes, new_passes, moves)


def marked_rows(changes: pa.RecordBatch, found: Halves, *, truncates: bool) -> pa.RecordBatch:
    """The rows that go forward, in commit order, as `row`, `change_type`, `version`, `timestamp`, `unchanged`.

    Truncations go forward as a row of nulls if `truncates`, and are left out otherwise.
    """
    op, old_kind = changes["op"].to_numpy(), changes["old_kind"].to_numpy()
    update = (op == UPDATE) & ~found.moves
    preimages = update & (old_kind == OLD_ROW) & found.new
    first = found.old | preimages | ((op == TRUNCATE) & truncates)
    first_type = np.where(preimages, PREIMAGE, np.where(op == TRUNCATE, _TRUNCATE, REMOVED))
    second_type = np.where(update, POSTIMAGE, INSERTED)
    return _assemble(changes, np.flatnonzero(first), first_type, np.flatnonzero(found.new), second_type)


def _keys_differ(changes: pa.RecordBatch, key: Sequence[str], rows: Indices) -> Mask:
    moved = np.zeros(len(rows), np.bool_)
    for name in key:
        old, new = (column_of(changes[side], name).take(index(rows)) for side in ("old", "new"))
        moved |= differ(old, new)
    return moved


def keys_of(changes: pa.RecordBatch, key: Sequence[str], old_rows: Indices, new_rows: Indices) -> pa.RecordBatch:
    """The keys of the rows before the changes `old_rows`, then of the rows after the changes `new_rows`."""
    columns = []
    for name in key:
        after = _rows_at(column_of(changes["new"], name), new_rows)
        before = column_of(changes["old"], name).take(index(old_rows)) if len(old_rows) else None
        columns.append(after if before is None else pa.concat_arrays([before, after]))
    return pa.RecordBatch.from_arrays(columns, names=list(key))


def in_turn(first: Indices, second: Indices) -> Indices:
    """The indices that bring first halves of changes, followed by second halves, into the order of the changes."""
    return np.argsort(np.concatenate([2 * first, 2 * second + 1]), kind="stable")


def _rows_at(array: pa.Array[Any], rows: Indices) -> pa.Array[Any]:
    """The values at these ascending, distinct places; the array itself, uncopied, where they are all."""
    return array if len(rows) == len(array) else array.take(index(rows))


def _assemble(
    changes: pa.RecordBatch, first: Indices, first_type: Indices, second: Indices, second_type: Indices
) -> pa.RecordBatch:
    """First halves (of rows before) and second halves (of rows after) in the order of their changes."""
    nothing_unchanged = pa.nulls(len(first), changes.schema.field("unchanged").type)
    unchanged = _rows_at(changes["unchanged"], second)
    row = _rows_at(changes["new"], second)
    version, timestamp = _rows_at(changes["version"], second), _rows_at(changes["timestamp"], second)
    kind = second_type[second]
    if len(first):
        order = in_turn(first, second)
        row = pa.concat_arrays([changes["old"].take(index(first)), row]).take(index(order))
        unchanged = pa.concat_arrays([nothing_unchanged, unchanged]).take(index(order))
        # A change stands here once, twice or not at all, so `_rows_at`, which goes by the length, would not do.
        source = index(np.concatenate([first, second])[order])
        version, timestamp = changes["version"].take(source), changes["timestamp"].take(source)
        kind = np.concatenate([first_type[first], kind])[order]
    types = pa.array(CHANGE_TYPES, pa.string()).take(index(kind))
    return pa.RecordBatch.from_arrays(
        [row, types, version, timestamp, unchanged],
        names=list(MARKED_COLUMNS),
    )


def refuse_truncate(changes: pa.RecordBatch, on_truncate: OnTruncate, table: str) -> None:
    """Raises TruncateError where these changes truncate the table, and the options do not say what to do then."""
    if on_truncate is OnTruncate.FAIL and (changes["op"].to_numpy() == TRUNCATE).any():
        raise TruncateError(
            f"the table {table} was truncated. Set onTruncate=emit to get a row with _change_type 'truncate', which "
            "means that all rows are gone, or onTruncate=ignore to keep them downstream"
        )
