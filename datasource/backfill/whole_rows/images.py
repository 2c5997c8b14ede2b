"""Full images of changes, from the rows that were known before them. Pure Arrow and NumPy.

What the log leaves out follows from what a key's row was:

| row before | event    | goes forward as                                                   |
|------------|----------|-------------------------------------------------------------------|
| none       | puts     | insert                                                            |
| known      | puts     | update_preimage, update_postimage; or nothing where they are equal |
| known      | removes  | delete, with the whole row                                        |
| none       | removes  | nothing                                                           |

The row before is the one that the key's previous event left, or what was known of the key at first. A value that the
log left out as unchanged comes from the row before too: from the row *under its old key* where the update moved it. So
each value leads back to where it was last given, over any number of events: a forest of pointers, followed for all
events at once by doubling.

A value is lost, and has to be looked up, where it leads back to a row that is not known, as for a row that moves here
from a part of the table that has not been read. It is also lost where it leads back to a null, which no log leaves out
as unchanged: the row was stored before its column was carried. And it is lost where the row it leads to need not be the
one that was changed: a row that was looked up itself, at a later state, when its key may have been another row's; or
the row before one that was left out because it came late.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from backfill.arrow.arrays import Indices, Mask, index, mask
from backfill.arrow.sameness import same
from backfill.changes import columns_of
from backfill.mark import CHANGE_TYPES, INSERTED, MARKED_COLUMNS, POSTIMAGE, PREIMAGE, REMOVED, in_turn
from backfill.whole_rows.events import Events, Portion


@dataclass(frozen=True, slots=True)
class KnownRows:
    """What is known of some keys, a line for each: whether there is a row, and its columns but for the key."""

    present: Mask
    rows: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Images:
    """What goes forward, in the columns of `mark`; and what is known of each key afterwards."""

    marked: pa.RecordBatch
    after: KnownRows


@dataclass(frozen=True, slots=True)
class Lost:
    """There are no images: the rows that these events put have values that are lost."""

    events: Mask


@dataclass(frozen=True, slots=True)
class TooLarge:
    """There are no images, because they would take too many bytes; those of the first `changes` would not."""

    changes: int


def images(
    portion: Portion,
    before: KnownRows,
    *,
    columns: pa.Schema,
    skips_equal: bool,
    most_bytes: int,
    severed: Mask,
) -> Images | Lost | TooLarge:
    """The images of the events; `before` has a line for each key, by its number.

    `columns` are those of the table; what `before.rows` lacks of them is the key. With `skips_equal`, an update that
    changes nothing is left out. A value that the log left out may be repeated in the images any number of times; such
    values take at most `most_bytes`, unless they are of one change. Nothing is taken from the row before a `severed`
    event.
    """
    changes, events = portion.changes, portion.events
    names, forest = before.rows.schema.names, _Forest.of(events, before.present, severed)
    left_out = {name: mask for name, mask in _listed(changes["unchanged"]).items() if name in names}
    after = columns_of(changes["new"])
    led_back = {name: forest.column(before.rows[name], after[name], mask) for name, mask in left_out.items()}
    lost = forest.lost([(mask, led_back[name]) for name, mask in left_out.items()])
    if lost.any():
        return Lost(lost)
    values = {name: led_back.get(name) or forest.column(before.rows[name], after[name], None) for name in names}
    fitting = _fitting(values.values(), forest, most_bytes)
    if fitting < changes.num_rows:
        return TooLarge(fitting)
    return Images(_marked(changes, forest, values, columns, skips_equal=skips_equal), _after(forest, values))


@dataclass(frozen=True, slots=True)
class _Column:
    """A column's values at the nodes of a forest."""

    given: pa.Array[Any]
    """The values that nodes have of their own; the last node, of which nothing is known, has none."""

    source: Indices | None
    """For each node, the node where its value was given; None where each node has its own."""

    @property
    def known(self) -> Mask:
        """For each node but the last, whether it has a value other than null."""
        given = mask(self.given.is_valid())
        return given if self.source is None else np.append(given, False)[self.source[:-1]]

    def at(self, nodes: Indices, absent: Mask | None = None) -> pa.Array[Any]:
        sources = nodes if self.source is None else self.source[nodes]
        return self.given.take(pa.array(sources, pa.int64(), mask=absent))


@dataclass(frozen=True, slots=True)
class _Forest:
    """Rows as nodes: of each key before all events, then after each event, then one row of which nothing is known."""

    events: Events
    present: Mask
    """For each key, whether there is a row before all events."""

    previous: Indices
    """For each event, the node of its key's row before it."""

    base: Indices
    """For each event, the node of the row that became its row: under the old key, where the update moved it."""

    @classmethod
    def of(cls, events: Events, present: Mask, severed: Mask) -> _Forest:
        before, nothing = events.previous, events.count + len(events)
        previous = np.where(before < 0, events.number, events.count + before)
        base = np.where(severed, nothing, previous)
        moved = np.flatnonzero(events.moves & ~events.removes)
        # The two halves of a change are neighbours, if both are events.
        other = np.maximum(moved - 1, 0)
        removed = (moved > 0) & (events.change[other] == events.change[moved])
        base[moved] = np.where(removed, base[other], nothing)
        return cls(events, present, previous, base)

    @property
    def nothing(self) -> int:
        return self.events.count + len(self.events)

    def after(self, events: Indices) -> Indices:
        """The nodes of the rows after these events."""
        return self.events.count + events

    @property
    def had(self) -> Mask:
        """For each event, whether there is a row of its key before it."""
        had: Mask = np.concatenate([self.present, ~self.events.removes])[self.previous]
        return had

    def column(self, before: pa.Array[Any], after: pa.Array[Any], leaves_out: Mask | None) -> _Column:
        """A column: `before` has its value for each key, `after` for each change but those that `leaves_out` names."""
        given = pa.concat_arrays([before, after.take(index(self.events.change))])
        return _Column(given, None if leaves_out is None else self._roots(leaves_out))

    def _roots(self, leaves_out: Mask, lacking: Mask | None = None) -> Indices:
        """For each node, the node that its value comes from, if the changes in `leaves_out` left it as it was.

        Nothing is known of the row after an event that is `lacking`.
        """
        removes = self.events.removes
        node = np.arange(self.nothing + 1)
        node[np.flatnonzero(~self.present)] = self.nothing
        node[self.after(np.flatnonzero(removes))] = self.nothing
        inherits = np.flatnonzero(~removes & leaves_out[self.events.change])
        node[self.after(inherits)] = self.base[inherits]
        if lacking is not None:
            node[self.after(np.flatnonzero(lacking))] = self.nothing
        while not np.array_equal(node[node], node):
            node = node[node]
        return node

    def lost(self, left_out: Sequence[tuple[Mask, _Column]]) -> Mask:
        """Which events lack a value, or take any from a row that does; for columns that some changes have left out.

        In the second case the value itself may be known. But a row with a lost value is replaced as a whole, and so are
        the rows that are made from it.
        """
        puts, lacking = ~self.events.removes, np.zeros(len(self.events), np.bool_)
        if not left_out:
            return lacking
        for leaves_out, column in left_out:
            lacking |= puts & leaves_out[self.events.change] & ~column.known[self.events.count :]
        node = self._roots(np.logical_or.reduce([leaves_out for leaves_out, _ in left_out]), lacking)
        lost: Mask = (node[self.events.count : self.nothing] == self.nothing) & puts
        return lost


def _marked(
    changes: pa.RecordBatch,
    forest: _Forest,
    values: Mapping[str, _Column],
    columns: pa.Schema,
    *,
    skips_equal: bool,
) -> pa.RecordBatch:
    """What goes forward, once the source of every value is known."""
    events, had = forest.events, forest.had
    emitted = np.ones(len(events), np.bool_)
    if skips_equal:
        pairs = np.flatnonzero(had & ~events.removes)
        emitted[pairs] = ~_equal(values.values(), forest.previous[pairs], forest.after(pairs))
    first, second = np.flatnonzero(had & emitted), np.flatnonzero(~events.removes & emitted)
    order = in_turn(first, second)
    line = np.concatenate([first, second])[order]
    node = np.concatenate([forest.previous[first], forest.after(second)])[order]
    kinds = np.concatenate(
        [np.where(events.removes, REMOVED, PREIMAGE)[first], np.where(had, POSTIMAGE, INSERTED)[second]]
    )[order]
    keys = events.keys.take(index(line))
    row = [values[field.name].at(node) if field.name in values else keys[field.name] for field in columns]
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


def _after(forest: _Forest, values: Mapping[str, _Column]) -> KnownRows:
    last = forest.events.last
    removed = forest.events.removes[last]
    rows = [column.at(forest.after(last), removed) for column in values.values()]
    return KnownRows(~removed, pa.RecordBatch.from_arrays(rows, names=list(values)))


def _equal(values: Iterable[_Column], left: Indices, right: Indices) -> Mask:
    """Which pairs of nodes have rows that are the same in every column."""
    result = np.ones(len(left), np.bool_)
    for column in values:
        result &= same(column.at(left), column.at(right))
    return result


def _listed(lists: pa.Array[Any]) -> Mapping[str, Mask]:
    """For each name that occurs in the lists, those that it is in."""
    if lists.null_count == len(lists):
        return {}
    names: Any = pc.list_flatten(lists)
    owner = pc.list_parent_indices(lists).to_numpy()
    result = {}
    for name in pc.unique(names):
        result[str(name)] = np.zeros(len(lists), np.bool_)
        result[str(name)][owner[mask(pc.equal(names, name))]] = True
    return result


def _fitting(values: Iterable[_Column], forest: _Forest, most_bytes: int) -> int:
    """How many of the first changes have left out values that together take no more than `most_bytes`."""
    events = forest.events
    size = np.zeros(len(events), np.int64)
    for column in values:
        if column.source is not None:
            lengths = np.append(_lengths(column.given), 0)[column.source]
            size += lengths[forest.previous] + lengths[events.count : forest.nothing]
    beyond = np.cumsum(size) > most_bytes
    return max(1, int(events.change[beyond.argmax()])) if beyond.any() else sys.maxsize


def _lengths(column: pa.Array[Any]) -> Indices:
    """About how many bytes each value has, if it is a text, a blob or a list; 0 for other types."""
    if pt.is_string(column.type) or pt.is_binary(column.type):
        found = pc.call_function("binary_length", [column])
    elif pt.is_list(column.type):
        elements = pc.list_flatten(column)
        found = pc.multiply(pc.list_value_length(column), elements.nbytes // max(1, len(elements)))
    else:
        found = pa.nulls(len(column), pa.int64())
    lengths: Indices = found.fill_null(0).to_numpy().astype(np.int64)
    return lengths
