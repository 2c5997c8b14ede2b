"""Rows that were looked up because some of their values are lost, in place of the changes to them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backfill.arrow.arrays import Indices, Mask, index
from backfill.arrow.batches import as_one_batch, in_columns
from backfill.changes import DELETE, OLD_KEY, OLD_NONE, UPDATE
from backfill.mark import Halves
from backfill.whole_rows.events import Portion, places
from backfill.whole_rows.images import Lost, TooLarge

LookUp: TypeAlias = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Finds the rows of keys, in `TableSchema.columns` and no order: at the batch's end, or later where that is gone."""

FEW: Final = 64
"""How many rows are looked up to see how large they are."""

_HEADS: Final[Sequence[str]] = ("version", "timestamp", "commit_id")


def looked_up(
    portion: Portion, lost: Lost, look_up: LookUp, *, shows_the_rest: bool, most_bytes: int
) -> tuple[pa.RecordBatch, Halves] | TooLarge:
    """The changes and their halves, without the events that have lost values; with `shows_the_rest`, also without all
    later events of their keys, which the rows that are looked up show already.

    Each of these keys has one more change at the end: an update to the row that `look_up` finds, or a delete where it
    finds none, under the commit of the key's last change. The rows have about `most_bytes` at the most, but for a few.
    """
    changes, events = portion.changes, portion.events
    begins = np.full(events.count, len(events), np.int64)
    np.minimum.at(begins, events.number[lost.events], np.flatnonzero(lost.events))
    numbers = np.flatnonzero(begins < len(events))
    numbers = numbers[np.argsort(begins[numbers])]
    keys = events.distinct.take(index(numbers))
    rows = _rows(keys, look_up, most_bytes)
    if isinstance(rows, int):
        return TooLarge(int(events.change[begins[numbers[rows]]]))

    gone = np.arange(len(events)) >= begins[events.number] if shows_the_rest else lost.events
    kept = portion.halves_without(gone)
    place = places(keys, rows.select(keys.schema.names))
    added = _changes(changes, events.change[events.last[numbers]], keys, rows, place)
    present = place >= 0
    halves = Halves(
        np.concatenate([kept.old, ~present]),
        np.concatenate([kept.new, present]),
        np.concatenate([kept.moves, np.zeros(len(present), np.bool_)]),
    )
    return as_one_batch(pa.Table.from_batches([changes, added])), halves


def _rows(keys: pa.RecordBatch, look_up: LookUp, most_bytes: int) -> pa.RecordBatch | int:
    """The rows of these keys; or, if they are too large, after how many of the first keys they became so.

    How large they are is not known beforehand. So a few are looked up first, and then as many as should fit.
    """
    found: list[pa.RecordBatch] = []
    read, size, few = 0, 0, FEW
    while read < keys.num_rows:
        if size > most_bytes:
            return read
        found.append(look_up(keys.slice(read, few)))
        read, size = min(read + few, keys.num_rows), size + found[-1].nbytes
        # Not many more at once: the next ones may be larger, or be there where the first ones were not.
        fitting = (most_bytes - size) * read // size if size else 16 * FEW
        few = max(FEW, min(4 * few, fitting))
    return as_one_batch(pa.Table.from_batches(found))


def _changes(
    changes: pa.RecordBatch, heads: Indices, keys: pa.RecordBatch, rows: pa.RecordBatch, place: Indices
) -> pa.RecordBatch:
    """For each key, an update to its row, or a delete where it has none."""
    absent: Mask = place < 0
    fields = list(changes.schema.field("new").type)
    at = pa.array(place, pa.int64(), mask=absent)
    new = [rows[field.name].take(at) for field in fields]
    old = in_columns(keys, pa.schema(fields)).columns
    made: dict[str, Any] = {
        "op": pa.array(np.where(absent, DELETE, UPDATE), pa.uint8()),
        "old_kind": pa.array(np.where(absent, OLD_KEY, OLD_NONE), pa.uint8()),
        "new": pa.StructArray.from_arrays(new, fields=fields, mask=pa.array(absent)),
        "old": pa.StructArray.from_arrays(old, fields=fields, mask=pc.invert(pa.array(absent))),
        "unchanged": pa.nulls(len(place), changes.schema.field("unchanged").type),
    }
    made |= {name: changes[name].take(index(heads)) for name in _HEADS}
    return pa.RecordBatch.from_arrays([made[name] for name in changes.schema.names], schema=changes.schema)
