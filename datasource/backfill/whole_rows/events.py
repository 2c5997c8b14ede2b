"""The halves of changes that go forward, as one event after the other for each key. Pure Arrow and NumPy.

An event puts the row of its key, or removes it. An update that keeps its key is one event; an update that moves it is
two events, of two keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backfill.arrow.arrays import Indices, Mask, index
from backfill.arrow.sameness import canonical
from backfill.mark import Halves, in_turn, keys_of


@dataclass(frozen=True, slots=True)
class Events:
    """A line for each event, in the order in which they happened."""

    change: Indices
    """The change that the event is a half of."""

    removes: Mask
    moves: Mask
    """Whether that change is an update which moves its key."""

    keys: pa.RecordBatch
    number: Indices
    """The number of the event's key; there are `count` keys, which `events_of` numbers by first appearance."""

    count: int

    def __len__(self) -> int:
        return len(self.change)

    @property
    def distinct(self) -> pa.RecordBatch:
        """The keys by their numbers; a float zero has no sign."""
        return canonical(self.keys.take(index(self.first)))

    @property
    def first(self) -> Indices:
        """The first event of each key, by its number."""
        first = np.zeros(self.count, np.int64)
        first[self.number[::-1]] = np.arange(len(self))[::-1]
        return first

    @property
    def last(self) -> Indices:
        """The last event of each key, by its number."""
        last = np.zeros(self.count, np.int64)
        last[self.number] = np.arange(len(self))
        return last

    @property
    def previous(self) -> Indices:
        """For each event, the previous one of the same key; -1 where there is none."""
        previous = np.full(len(self), -1, np.int64)
        by_key = np.argsort(self.number, kind="stable")
        follows = self.number[by_key][1:] == self.number[by_key][:-1]
        previous[by_key[1:][follows]] = by_key[:-1][follows]
        return previous

    def where(self, which: Mask) -> Events:
        """Only these events; keys are numbered anew."""
        if which.all():
            return self
        kept, number = np.unique(self.number[which], return_inverse=True)
        keys = self.keys.filter(pa.array(which))
        return Events(self.change[which], self.removes[which], self.moves[which], keys, number, len(kept))


def events_of(changes: pa.RecordBatch, halves: Halves, key: Sequence[str]) -> Events:
    """The events of marked changes in the layout of `backfill.changes`."""
    old, new = np.flatnonzero(halves.old), np.flatnonzero(halves.new)
    order = in_turn(old, new)
    keys = keys_of(changes, key, old, new).take(index(order))
    number, count = _numbered(keys)
    change = np.concatenate([old, new])[order]
    return Events(change, order < len(old), halves.moves[change], keys, number, count)


@dataclass(frozen=True, slots=True)
class Portion:
    """Changes that are completed together, which of their halves go forward, and the events of these halves."""

    changes: pa.RecordBatch
    halves: Halves
    events: Events

    @classmethod
    def of(cls, changes: pa.RecordBatch, halves: Halves, key: Sequence[str]) -> Portion:
        return cls(changes, halves, events_of(changes, halves, key))

    def halves_without(self, which: Mask) -> Halves:
        """The halves, without those that are these events."""
        events, old, new = self.events, self.halves.old.copy(), self.halves.new.copy()
        old[events.change[which & events.removes]] = False
        new[events.change[which & ~events.removes]] = False
        return Halves(old, new, self.halves.moves)


def places(keys: pa.RecordBatch, among: pa.RecordBatch) -> Indices:
    """For each key, its place in `among`, whose keys all differ; -1 where it is not there."""
    together = [pa.concat_arrays([one, other]) for one, other in zip(among.columns, keys.columns, strict=True)]
    number, count = _numbered(pa.RecordBatch.from_arrays(together, schema=among.schema))
    place = np.full(count, -1, np.int64)
    place[number[: among.num_rows]] = np.arange(among.num_rows)
    return place[number[among.num_rows :]]


def _numbered(keys: pa.RecordBatch) -> tuple[Indices, int]:
    """For each key, its number among the distinct keys by first appearance; and how many of these there are."""
    number, count = np.zeros(keys.num_rows, np.int64), 1
    for column in canonical(keys).columns:
        coded: Any = pc.dictionary_encode(column)
        codes = coded.indices.to_numpy().astype(np.int64)
        unique, number = np.unique(number * len(coded.dictionary) + codes, return_inverse=True)
        count = len(unique)
    if keys.num_columns > 1:  # For a single column, Arrow's codes have that order.
        _, first = np.unique(number, return_index=True)
        number = np.argsort(np.argsort(first))[number]
    return number, count if keys.num_rows else 0
