"""Changes in full, a portion at a time: from what is stored of their keys to images, and what is stored after them.

Where the log leaves out a value that is not stored either, the row is looked up in the table: at the end of the batch,
or at a later state where that one is gone, as it is after the backfill. Such a row already shows what the rest of the
batch does to its key, so that is passed over. And by then the key may belong to another row than the one that was
changed, so no value is taken from a row that was looked up: if a later change leaves one out, its row is looked up in
turn. The place in a row's order shows that it was looked up (`LOOKED_UP`).

With an order column no value is taken from any stored row: a row that came late was left out, and the log's next change
may be one to it. Nor is the rest of the batch passed over: it may have a row of a greater order than the one looked up.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from backfill.arrow.arrays import Indices, Mask, index, mask
from backfill.arrow.batches import as_one_batch
from backfill.changes import column_of
from backfill.mark import Halves
from backfill.rows import ORDINAL_BITS, SNAPSHOT_ORDINAL
from backfill.upstream import TableSchema
from backfill.whole_rows.events import Events, Portion, places
from backfill.whole_rows.images import Images, KnownRows, Lost, TooLarge, images
from backfill.whole_rows.late import NO_ORDER, order_of, timely
from backfill.whole_rows.lookup import LookUp, looked_up
from backfill_state.upsert import CHUNK_ROWS, Found, Updates, UpsertState

ROWS_AT_ONCE: Final = CHUNK_ROWS
BYTES_AT_ONCE: Final = 64 << 20
"""How much is looked up and put at once: as many rows as the state searches for in one go over all of it.

Twice as many were no faster, and took 0.2 GB more for rows of 100 bytes.
"""

IMAGES: Final = 4
"""The values that the log left out may take this many times BYTES_AT_ONCE in the images of one portion."""

LOOKED_UP: Final = 1 << (ORDINAL_BITS - 1)
"""Where in a batch's order the rows begin that were looked up: after all of its events, before its snapshot rows."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The options by which changes are completed."""

    skips_equal: bool = False
    """Whether an update that changes nothing is left out."""

    order_column: str = ""
    """The column whose greater value is the later row; rows that come late are left out."""

    most_bytes: int = BYTES_AT_ONCE
    """How many bytes of rows are read at once at most; a single row may be larger."""


@dataclass(frozen=True, slots=True)
class _WithStored:
    """A portion, and what is stored of its keys."""

    portion: Portion
    before: Found

    @property
    def events(self) -> Events:
        return self.portion.events

    def only(self, which: Mask, halves: Halves) -> _WithStored:
        """The same with only these of its events."""
        kept = np.unique(self.events.number[which])
        portion = Portion(self.portion.changes, halves, self.events.where(which))
        return _WithStored(portion, self.before.of_keys(kept))


@dataclass(frozen=True, slots=True)
class _Whole:
    """The images of events; `order` is that of each key's row after them."""

    events: Events
    order: Indices
    images: Images


@dataclass(frozen=True, slots=True)
class CompletedChanges:
    """The images of some changes, in the columns of `mark`, and how many events and changes they are made of."""

    marked: pa.RecordBatch
    events: int
    changes: int


@dataclass(frozen=True, slots=True)
class WholeRows:
    """Completes the changes of one batch, and keeps `state` up with them."""

    state: UpsertState
    table: TableSchema
    rules: Rules
    look_up: LookUp
    batch: int

    def complete(self, changes: pa.RecordBatch, halves: Halves, place: int) -> CompletedChanges:
        """The images of the first changes, as many of them as are not too much at once.

        Puts the rows that are there after these changes into the state, with places in the batch from `place` on.
        """
        stored = self._unshown(self._first(changes, halves))
        taken = stored.portion.changes.num_rows
        whole = self._whole(stored, self.rules.most_bytes if taken > 1 else sys.maxsize // IMAGES)
        if isinstance(whole, TooLarge):
            # Where too many rows were looked up, it is not known how many changes fewer would do.
            fewer = slice(min(whole.changes, max(1, taken // 2)))
            return self.complete(changes[fewer], halves.of(fewer), place)
        self._put(whole, place, whole.events.change >= taken)
        return CompletedChanges(whole.images.marked, len(whole.events), taken)

    def _whole(self, stored: _WithStored, most_bytes: int) -> _Whole | TooLarge:
        """The images of a portion. Rows that are looked up replace events with lost values, until there are none."""
        logged: tuple[Events, Indices] | None = None
        while True:
            stored, order, after_late = self._timely(stored)
            made = self._images(stored, after_late, IMAGES * most_bytes)
            if isinstance(made, Images):
                if logged is not None:
                    order = np.where(made.after.present, order, _with_rows_gone(stored.events, order, *logged))
                return _Whole(stored.events, order, made)
            if isinstance(made, TooLarge):
                return made
            rest = not self.rules.order_column
            replaced = looked_up(stored.portion, made, self.look_up, shows_the_rest=rest, most_bytes=most_bytes)
            if isinstance(replaced, TooLarge):
                return replaced
            logged = logged or (stored.events, order)
            stored = self._with_stored(self._portion(*replaced))

    def _put(self, whole: _Whole, place: int, added: Mask) -> None:
        """Puts the rows that are there afterwards; `added` are the events that a look-up has added."""
        events, after = whole.events, whole.images.after
        tie = np.arange(place, place + events.count)
        if self.rules.order_column:
            tie += self.batch << ORDINAL_BITS
        else:
            looked_up_now = np.zeros(events.count, np.bool_)
            looked_up_now[events.number[added]] = True
            # Only for rows that were found: for a key without a row, the rest of the batch is not passed over.
            tie[looked_up_now & after.present] += LOOKED_UP
        put(self.state, events.distinct, after, whole.order, tie)

    def _first(self, changes: pa.RecordBatch, halves: Halves) -> _WithStored:
        """As many of the first changes as have stored rows that are not too much to read, with these rows.

        A change that removes a row has its key, and does not tell how long the stored row is.
        """
        portion = self._portion(changes, halves)
        events = portion.events
        before = self.state.multi_get(_table_of(events.distinct), most_bytes=self.rules.most_bytes)
        read = before.entries.num_rows
        if read == events.count:
            return _WithStored(portion, before)
        # Keys are numbered as they appear, so those of the first changes are the first that were read.
        first = slice(max(1, int(events.change[events.number >= read][0])))
        portion = self._portion(changes[first], halves.of(first))
        count = portion.events.count
        return self._with_stored(portion) if count > read else _WithStored(portion, before.of_keys(np.arange(count)))

    def _portion(self, changes: pa.RecordBatch, halves: Halves) -> Portion:
        return Portion.of(changes, halves, self.table.key)

    def _with_stored(self, portion: Portion) -> _WithStored:
        return _WithStored(portion, self.state.multi_get(_table_of(portion.events.distinct)))

    def _unshown(self, stored: _WithStored) -> _WithStored:
        """The same without changes to keys whose row was looked up for this batch: it shows them already."""
        if self.rules.order_column:
            return stored
        in_this = _filled(stored.before.entries["order_key"], 0) == self.batch
        shown = (_looked_up(stored.before.entries) & in_this)[stored.events.number]
        return stored.only(~shown, stored.portion.halves_without(shown))

    def _images(self, stored: _WithStored, after_late: Mask, most_bytes: int) -> Images | Lost | TooLarge:
        present = _filled(stored.before.entries["present"], value=False)
        # The row that is stored need not be the one that the log goes on from.
        another = present if self.rules.order_column else _looked_up(stored.before.entries)
        severed = after_late.copy()
        severed[stored.events.first[another]] = True
        return images(
            stored.portion,
            KnownRows(present, as_one_batch(stored.before.rows)),
            columns=self.table.columns,
            skips_equal=self.rules.skips_equal,
            most_bytes=most_bytes,
            severed=severed,
        )

    def _timely(self, stored: _WithStored) -> tuple[_WithStored, Indices, Mask]:
        """Only the events that are not late; the order of each key afterwards; which events come after a late one."""
        portion, events = stored.portion, stored.events
        if not self.rules.order_column:
            return stored, np.full(events.count, self.batch), np.zeros(len(events), np.bool_)
        puts = ~events.removes
        given = np.full(len(events), NO_ORDER)
        rows = column_of(portion.changes["new"], self.rules.order_column)
        given[puts] = order_of(rows.take(index(events.change[puts])))
        found = timely(events, given, _filled(stored.before.entries["order_key"], NO_ORDER))
        kept = np.unique(events.number[found.events])
        # A whole row may be late only because of one with lost values before it, and is judged again after the look-up.
        leaves_out = mask(portion.changes["unchanged"].is_valid())
        halves = portion.halves_without(~found.events & leaves_out[events.change])
        return stored.only(found.events, halves), found.order[kept], found.severed[found.events]


def _looked_up(entries: pa.Table) -> Mask:
    """The keys whose row, if they have one, was looked up."""
    place = _filled(entries["order_tie"], 0) & SNAPSHOT_ORDINAL
    looked_up: Mask = _filled(entries["present"], value=False)
    looked_up &= (place >= LOOKED_UP) & (place < SNAPSHOT_ORDINAL)
    return looked_up


def _with_rows_gone(events: Events, order: Indices, logged: Events, reached: Indices) -> Indices:
    """The order of each key, going also by rows that the log has and that were gone when they were looked up.

    `reached` is the order of each key of all `logged` events.
    """
    of_each: Indices = np.append(reached, NO_ORDER)[places(events.distinct, logged.distinct)]
    return np.maximum(order, of_each)


def put(state: UpsertState, keys: pa.RecordBatch, known: KnownRows, order: Indices, tie: Indices) -> None:
    """Puts into the state what is known of each key, and the two numbers of its order."""
    heads: list[Any] = [pa.array(order, pa.int64()), pa.array(tie, pa.int64()), pa.array(known.present)]
    stored = pa.Table.from_arrays(list[Any](known.rows.columns), schema=state.layout.row)
    state.multi_put(Updates(_table_of(keys), pa.table(heads, names=["order_key", "order_tie", "present"]), stored))


def _filled(column: Any, value: object) -> Any:
    return column.fill_null(value).to_numpy()


def _table_of(rows: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([rows])
