"""Full images of changes, from the rows that were known before them. Pure Arrow and NumPy.

What the log leaves out follows from what a key's row was:

| row before | event    | goes forward as                                                   |
|------------|----------|-------------------------------------------------------------------|
| none       | puts     | insert                                                            |
| known      | puts     | update_preimage, update_postimage; or nothing where they are equal |
| known      | removes  | delete, with the whole row                                        |
| none       | removes  | nothing                                                           |

The row before is that of the event before of the same key, or what was known of the key at first. A value that the log
left out as unchanged is that of the row before as well; of the row *under its old key* where the update moved it. So
each value leads back to where it was last given, over any number of events: a forest of pointers, followed for all
events at once by doubling. Where it leads to a row that is not known, as of a row that comes from where the table has
not been read, the value is lost, and somebody has to look it up. So it is where it leads to a row that need not be the
one that was changed: one that was looked up itself, at some later state in which its key may be another row's; or the
one before a row that was left out because it came late.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from backfill.changes import columns_of
from backfill.events import Events
from backfill.mark import (
    CHANGE_TYPES,
    INSERTED,
    MARKED_COLUMNS,
    POSTIMAGE,
    PREIMAGE,
    REMOVED,
    Halves,
    Indices,
    Mask,
    in_turn,
    index,
)
from backfill.sameness import same


@dataclass(frozen=True, slots=True)
class Known:
    """What there is of some keys, a line for each: whether there is a row, and its columns but for the key."""

    present: Mask
    rows: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Images:
    """What goes forward, in the columns of `mark`; and what there is of each key afterwards."""

    marked: pa.RecordBatch
    after: Known


@dataclass(frozen=True, slots=True)
class Lost:
    """There are no images: the rows that these events put have values that are lost."""

    events: Mask


@dataclass(frozen=True, slots=True)
class TooMuch:
    """There are no images, because they would take too many bytes; those of the first `changes` would not."""

    changes: int


def images(
    changes: pa.RecordBatch,
    halves: Halves,
    events: Events,
    before: Known,
    *,
    columns: pa.Schema,
    skips_equal: bool,
    most_bytes: int,
    severed: Mask,
) -> Images | Lost | TooMuch:
    """The images of the events of marked changes; `before` has a line for each key, by its number.

    `columns` are those of the table; what `before.rows` lacks of them is the key. With `skips_equal` an update that
    changes nothing is not told. Values that the log left out may stand in the images any number of times; of them
    there are at most `most_bytes`, unless it is one change's. Nothing is taken from the row before a `severed` event.
    """
    forest = _Forest(events.count, len(events), _previous(events))
    left_out = {name: mask for name, mask in _listed(changes["unchanged"]).items() if name in before.rows.schema.names}
    base = _bases(halves, events, forest, severed) if left_out else forest.previous
    sources = {
        name: _roots(left_out[name], base, events, before, forest) if name in left_out else None
        for name in before.rows.schema.names
    }
    lost = _lost(left_out, base, events, before, forest)
    if lost.any():
        return Lost(lost)
    after = columns_of(changes["new"])
    values = {name: _values(before.rows[name], after[name], events) for name in before.rows.schema.names}
    fitting = _fitting(values, sources, events, forest, most_bytes)
    if 0 < fitting < changes.num_rows:
        return TooMuch(fitting)
    marked = _marked(changes, events, before, forest, values, sources, columns, skips_equal=skips_equal)
    return Images(marked, _after(events, forest, values, sources))


def _marked(
    changes: pa.RecordBatch,
    events: Events,
    before: Known,
    forest: _Forest,
    values: Values,
    sources: Sources,
    columns: pa.Schema,
    *,
    skips_equal: bool,
) -> pa.RecordBatch:
    """What goes forward, once the source of every value is known."""
    had = np.concatenate([before.present, ~events.removes])[forest.previous]
    told = np.ones(len(events), np.bool_)
    if skips_equal:
        pairs = np.flatnonzero(had & ~events.removes)
        told[pairs] = ~_equal(values, sources, forest.previous[pairs], forest.of(pairs))
    first, second = np.flatnonzero(had & told), np.flatnonzero(~events.removes & told)
    order = in_turn(first, second)
    line = np.concatenate([first, second])[order]
    node = np.concatenate([forest.previous[first], forest.of(second)])[order]
    kinds = np.concatenate(
        [np.where(events.removes, REMOVED, PREIMAGE)[first], np.where(had, POSTIMAGE, INSERTED)[second]]
    )[order]
    keys = events.keys.take(index(line))
    row = [
        _taken(values[field.name], sources[field.name], node) if field.name in values else keys[field.name]
        for field in columns
    ]
    fields = [field.with_nullable(True) for field in columns]
    change = index(events.change[line])
    marked: list[Any] = [
        pa.StructArray.from_arrays(row, fields=fields),
        pa.array(CHANGE_TYPES, pa.string()).take(index(kinds)),
        changes["version"].take(change),
        changes["timestamp"].take(change),
        pa.nulls(len(line), changes.schema.field("unchanged").type),
    ]
    return pa.RecordBatch.from_arrays(marked, names=list(MARKED_COLUMNS))


@dataclass(frozen=True, slots=True)
class _Forest:
    """Rows as nodes: that of each key before all events, then that after each event, then one nothing is known of."""

    keys: int
    events: int
    previous: Indices
    """For each event the node of its key's row before."""

    def of(self, events: Indices) -> Indices:
        return self.keys + events

    @property
    def nothing(self) -> int:
        return self.keys + self.events


def _previous(events: Events) -> Indices:
    previous = events.previous
    return np.where(previous < 0, events.number, events.count + previous)


Values: TypeAlias = Mapping[str, "pa.Array[Any]"]
"""The values of each column that nodes have of their own, by node."""

Sources: TypeAlias = Mapping[str, Indices | None]
"""For each column and each node the node where its value was given; None where each has its own."""


def _roots(leaves_out: Mask, base: Indices, events: Events, before: Known, forest: _Forest) -> Indices:
    """For each node the node that its value comes from, if the changes in `leaves_out` left it as it was."""
    node = np.arange(forest.nothing + 1)
    node[np.flatnonzero(~before.present)] = forest.nothing
    node[forest.of(np.flatnonzero(events.removes))] = forest.nothing
    inherits = np.flatnonzero(~events.removes & leaves_out[events.change])
    node[forest.of(inherits)] = base[inherits]
    while not np.array_equal(node[node], node):
        node = node[node]
    return node


def _lost(left_out: Mapping[str, Mask], base: Indices, events: Events, before: Known, forest: _Forest) -> Mask:
    """Which events take any value from a row that is not known, or from one that does so.

    Of the latter the value may be known, but the row goes with all its values, and with it whatever comes of it.
    """
    if not left_out:
        return np.zeros(len(events), np.bool_)
    node = _roots(np.logical_or.reduce(list(left_out.values())), base, events, before, forest)
    lost: Mask = (node[forest.keys : forest.nothing] == forest.nothing) & ~events.removes
    return lost


def _taken(values: pa.Array[Any], source: Indices | None, nodes: Indices) -> pa.Array[Any]:
    return values.take(index(nodes if source is None else source[nodes]))


def _bases(halves: Halves, events: Events, forest: _Forest, severed: Mask) -> Indices:
    """For each event the row that was changed into its row: under the old key, where the update moved it."""
    base = forest.previous.copy()
    base[severed] = forest.nothing
    moved = np.flatnonzero(~events.removes & halves.moves[events.change])
    removed = halves.old[events.change[moved]]
    # The two halves of a change are neighbours.
    base[moved] = np.where(removed, base[moved - 1], forest.nothing)
    return base


def _listed(lists: pa.Array[Any]) -> Mapping[str, Mask]:
    """For each name that occurs in one of the lists, in which."""
    if lists.null_count == len(lists):
        return {}
    names: Any = pc.list_flatten(lists)
    owner = pc.list_parent_indices(lists).to_numpy()
    result = {}
    for name in pc.unique(names):
        result[str(name)] = np.zeros(len(lists), np.bool_)
        result[str(name)][owner[pc.equal(names, name).to_numpy(zero_copy_only=False)]] = True
    return result


def _values(before: pa.Array[Any], after: pa.Array[Any], events: Events) -> pa.Array[Any]:
    """A column's value at each node that has one of its own."""
    return pa.concat_arrays([before, after.take(index(events.change))])


def _fitting(values: Values, sources: Sources, events: Events, forest: _Forest, most_bytes: int) -> int:
    """Of how many of the first changes the values that were left out take no more than so many bytes."""
    size = np.zeros(len(events), np.int64)
    for name, source in sources.items():
        if source is not None:
            lengths = np.append(_lengths(values[name]), 0)
            size += lengths[source[forest.previous]] + lengths[source[forest.keys : forest.nothing]]
    beyond = np.cumsum(size) > most_bytes
    return max(1, int(events.change[beyond.argmax()])) if beyond.any() else sys.maxsize


def _lengths(column: pa.Array[Any]) -> Indices:
    """About how many bytes each value has, where they may differ."""
    if pt.is_string(column.type) or pt.is_binary(column.type):
        found = pc.call_function("binary_length", [column])
    elif pt.is_list(column.type):
        elements = pc.list_flatten(column)
        found = pc.multiply(pc.list_value_length(column), elements.nbytes // max(1, len(elements)))
    else:
        found = pa.nulls(len(column), pa.int64())
    lengths: Indices = found.fill_null(0).to_numpy().astype(np.int64)
    return lengths


def _after(events: Events, forest: _Forest, values: Values, sources: Sources) -> Known:
    last = events.last
    present = ~events.removes[last]
    rows = []
    for name, column in values.items():
        source = sources[name]
        nodes = forest.of(last) if source is None else source[forest.of(last)]
        rows.append(column.take(pa.array(nodes, pa.int64(), mask=~present)))
    return Known(present, pa.RecordBatch.from_arrays(rows, names=list(values)))


def _equal(values: Values, sources: Sources, left: Indices, right: Indices) -> Mask:
    """Which pairs of nodes have rows that are the same in every column."""
    result = np.ones(len(left), np.bool_)
    for name, column in values.items():
        result &= same(_taken(column, sources[name], left), _taken(column, sources[name], right))
    return result
