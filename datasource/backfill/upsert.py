"""`changelog=full` and `envelope=upsert`: what the log leaves out, from the last row of every key the sink holds.

The rows are in an upsert state beside the stream's progress, which only the driver opens. A batch brings it from one
barrier to the next in a single transaction, whose token is the barrier's epoch:

    what the state holds          token 7: the sink's rows at barrier 7, but for the snapshot rows of batch 7
    batch 8 is planned            puts the staged chunks of batch 7, which Spark has committed
                                  makes the images of batch 8's changes and stages them, puts the new rows
                                  names the staged files in a manifest; commits, and the token is 8
    batch 8 is planned again      the token is 8 already: the manifest says which files there are

So a crash before the commit leaves the state as it was, and the same rows are made anew; after it they are read. The
state follows from the stream's own output and from nothing else. Where it is lost, or belongs to another barrier, it
cannot be made from the checkpoint, which is an error and not a guess.

A row of which the log leaves out a value that nobody knows is looked up in the table, at the end of the batch or, where
that state is gone, later. It shows all that the rest of the batch does to its key, which is passed over. And it may be
another row by then than the one that got its key; so nothing is taken from it for a row that the log tells of later,
which is looked up in turn. The order of such a row says what it is. With an order column no row is a source for
another: one that came late was left out, and the log goes on from it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from backfill.batches import joined, together
from backfill.changes import column_of
from backfill.errors import OptionsError, StateError
from backfill.events import NO_ORDER, Events, canonical, events, timely
from backfill.handoff import StagedChanges, stage, staged
from backfill.images import Images, Known, Lost, TooMuch, images
from backfill.lookup import looked_up, without
from backfill.mark import MARKED_COLUMNS, Halves, Indices, Mask, index
from backfill.offset import Barrier
from backfill.rows import ORDINAL_BITS, SNAPSHOT_ORDINAL, RowFormat
from backfill.staging import Staging
from backfill.state_errors import as_ours
from backfill.upstream import TableSchema
from backfill_state.upsert import Found, Updates, UpsertLayout, UpsertState

ROWS_AT_ONCE: Final = 245_760
BYTES_AT_ONCE: Final = 64 << 20
"""How much is looked up and put at once: each time the whole state is gone through for the keys.

Twice as many were no faster, and took 0.2 GB more for rows of 100 bytes.
"""

IMAGES: Final = 4
"""So many times as much as is read at once may be values that were left out, in its images; of others there is less."""

LOOKED_UP: Final = 1 << (ORDINAL_BITS - 1)
"""Where in a batch's order the rows begin that were looked up: after all of its events, before its snapshot rows."""

LookUp: TypeAlias = Callable[[pa.RecordBatch], pa.RecordBatch]
"""The rows of these keys, in `TableSchema.columns` and no order, at `end` or, where that state is gone, after it."""

Marked: TypeAlias = Iterator[tuple[pa.RecordBatch, Halves | None]]
"""Changes and which halves of them go forward; None for a truncation that does, which stands alone."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How changes are told, beside that they are told in full."""

    skips_equal: bool = False
    """Whether an update that changes nothing is left out."""

    order_column: str = ""
    """The column whose greater value is the later row; rows that come late are left out."""

    most_bytes: int = BYTES_AT_ONCE
    """Of at most how many bytes rows are read at once, unless it is one."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Changes that are told at once: which halves go forward, the events of these, and what is stored of their keys."""

    changes: pa.RecordBatch
    found: Halves
    told: Events
    before: Found
    severed: Mask | None = None
    """Events whose row before came late and was left out; None where there are none."""


class LastRows:
    """The rows a stream has emitted, by key, and the images that follow from them."""

    def __init__(self, open_state: Callable[[UpsertLayout], UpsertState], rows: RowFormat, rules: Rules) -> None:
        if rules.order_column:
            require_order(rows.table, rules.order_column)
        self._open_state = open_state
        self._rows = rows
        self._rules = rules
        self._state: UpsertState | None = None
        self._figures: dict[str, int] | None = None

    @property
    def keeps_the_latest(self) -> bool:
        """Whether the rows may be later ones than those of the table."""
        return bool(self._rules.order_column)

    @property
    def _columns(self) -> list[str]:
        """The columns of a row but for its key; a row of nothing else repeats it."""
        table = self._rows.table
        return [name for name in table.columns.names if name not in table.key] or list(table.key)

    def _opened(self, stream: str) -> UpsertState:
        if self._state is None:
            table = self._rows.table
            row = pa.schema([table.columns.field(name) for name in self._columns])
            self._state = self._open_state(UpsertLayout(stream, table.key_schema, row))
        return self._state

    def figures(self) -> dict[str, int]:
        """How much there is, for whoever watches; nothing before the first batch of this process.

        The state is asked once for each batch: an idle stream is looked at many times a second.
        """
        if self._figures is None and self._state is not None:
            with as_ours():
                totals, usage = self._state.totals(), self._state.usage()
            self._figures = {
                "state_rows": totals.values,
                "state_row_bytes": totals.size,
                "state_file_bytes": usage.file,
                "state_memory_bytes": usage.memory,
            }
        return dict(self._figures or {})

    def close(self) -> None:
        if self._state is not None:
            self._state.close()

    # -- from one barrier to the next ------------------------------------------------------------------------------

    def changes(
        self,
        begin: Barrier | None,
        end: Barrier,
        staging: Staging,
        readers: int,
        marked: Callable[[], Marked],
        look_up: LookUp,
    ) -> tuple[StagedChanges, ...]:
        """What readers read of the changes from `begin` to `end`, of which `marked` gives those that go forward.

        A row of which a value is lost is told as `look_up` finds it, in place of its changes. Brings the state to
        `end`. The same again for the same barriers.
        """
        number = end.epoch.number
        with as_ours():
            state = self._opened(end.stream)
            self._require_standing(state, begin, end)
            with state.batch(_token(end)) as new:
                if new:
                    if begin is not None:
                        self._put_snapshot(state, begin, staging)
                    files = stage(self._output(state, end, marked(), look_up), self._rows.schema, staging, number)
                    staging.keep_changes(number, files)
                else:
                    files = staging.changes(number)
            self._figures = None
        return staged(staging, number, files, readers)

    def _require_standing(self, state: UpsertState, begin: Barrier | None, end: Barrier) -> None:
        if begin is None:
            # The first batch has no changes. What is there, if anything, is of a stream that was given up.
            state.reset()
            return
        token = state.token()
        if token in (_token(begin), _token(end)):
            return
        found = "there is none" if token is None else f"that in stateDir is of epoch {token.partition(' ')[0]}"
        raise StateError(
            f"the stream goes on from epoch {begin.epoch.number}, which takes the last row of every key at that time, "
            f"and {found}. It was lost, or the stream ran without changelog=full or from another checkpoint meanwhile, "
            "or it was resumed from stateDir (onExistingState=resume), where the record may be some batches behind the "
            "last rows. Read everything again with a fresh checkpointLocation and onExistingState=restart; or leave "
            "out changelog and envelope, to get changes as the log tells them"
        )

    def _put_snapshot(self, state: UpsertState, begin: Barrier, staging: Staging) -> None:
        """Puts the snapshot rows of the batch that ended at `begin`."""
        number = begin.epoch.number
        manifest = staging.manifest(number)
        names = () if manifest is None else manifest.chunks
        read = (batch for name in names for batch in staging.read(number, name))
        for rows in together(read, ROWS_AT_ONCE, BYTES_AT_ONCE):
            keys = canonical(rows.select(self._rows.table.key))
            orders = np.full(rows.num_rows, number), np.full(rows.num_rows, SNAPSHOT_ORDINAL)
            if self._rules.order_column:
                orders = self._order_of(rows[self._rules.order_column]), (orders[0] << ORDINAL_BITS) + orders[1]
            present = np.ones(rows.num_rows, np.bool_)
            state.multi_put(_updates(state, keys, present, rows.select(self._columns), *orders))

    def _output(self, state: UpsertState, end: Barrier, marked: Marked, look_up: LookUp) -> Iterator[pa.RecordBatch]:
        """Output rows of marked changes, which have been put when the next are made."""
        first = place = 0
        for changes, found in marked:
            if found is None:
                state.clear()
                made = _truncation(changes)
                yield self._rows.change_rows(made, end.epoch, first)
                first += made.num_rows
                continue
            begin = 0
            while not (rest := found.of(slice(begin, None))).nothing:
                at = end.epoch.number, place
                made, count, taken = self._made(state, changes.slice(begin), rest, at, look_up)
                yield self._rows.change_rows(made, end.epoch, first)
                first, place, begin = first + made.num_rows, place + count, begin + taken

    def _made(
        self, state: UpsertState, changes: pa.RecordBatch, found: Halves, at: tuple[int, int], look_up: LookUp
    ) -> tuple[pa.RecordBatch, int, int]:
        """The images of the first of these changes in the columns of `mark`; of how many events and changes they are.

        The rows that the events leave are put, with orders from `at` on.
        """
        piece = self._unshown(self._first(state, changes, found), at[0])
        taken = piece.changes.num_rows
        most = self._rules.most_bytes if taken > 1 else sys.maxsize // IMAGES
        while True:
            piece, order = self._timely(piece, at[0])
            made = self._images(piece, IMAGES * most)
            if isinstance(made, Lost):
                replaced = looked_up(piece.changes, piece.found, piece.told, made, look_up, most_bytes=most)
                if not isinstance(replaced, TooMuch):
                    piece = self._with_stored(state, *replaced)
                    continue
                made = replaced
            if isinstance(made, TooMuch):
                fewer = slice(min(made.changes, taken - 1))
                return self._made(state, changes[fewer], found.of(fewer), at, look_up)
            self._put(state, piece, made.after, order, at, piece.told.change >= taken)
            return made.marked, len(piece.told), taken

    def _put(
        self, state: UpsertState, piece: _Piece, after: Known, order: Indices, at: tuple[int, int], shown: Mask
    ) -> None:
        """Puts the rows that are there after a piece; `shown` are the events that a look-up has added."""
        number, place = at
        told = piece.told
        tie = np.arange(place, place + told.count)
        looked_up_now = np.zeros(told.count, np.bool_)
        looked_up_now[told.number[shown]] = True
        # Not of one that is not there: what the batch says of its key further on counts as ever.
        tie[looked_up_now & after.present] += LOOKED_UP
        if self._rules.order_column:
            tie += number << ORDINAL_BITS
        state.multi_put(_updates(state, told.distinct, after.present, after.rows, order, tie))

    def _first(self, state: UpsertState, changes: pa.RecordBatch, found: Halves) -> _Piece:
        """The first changes, of which what is stored of their keys is not too much to read.

        A change that removes a row tells its key and not its length.
        """
        told = events(changes, found, self._rows.table.key)
        before = state.multi_get(_table(told.distinct), most_bytes=self._rules.most_bytes)
        read = before.entries.num_rows
        if read == told.count:
            return _Piece(changes, found, told, before)
        # Keys are numbered as they appear, so those of the first changes are the first that were read.
        first = slice(max(1, int(told.change[told.number >= read][0])))
        told = events(changes[first], found.of(first), self._rows.table.key)
        if told.count > read:
            return self._with_stored(state, changes[first], found.of(first))
        return _Piece(changes[first], found.of(first), told, _of_keys(before, np.arange(told.count)))

    def _with_stored(self, state: UpsertState, changes: pa.RecordBatch, found: Halves) -> _Piece:
        told = events(changes, found, self._rows.table.key)
        return _Piece(changes, found, told, state.multi_get(_table(told.distinct)))

    def _unshown(self, piece: _Piece, batch: int) -> _Piece:
        """Without what the batch does to keys whose row has been looked up for it, and so shows that already."""
        tie, order = _filled(piece.before.entries["order_tie"], 0), _filled(piece.before.entries["order_key"], 0)
        put_in = tie >> ORDINAL_BITS if self._rules.order_column else order
        shown = (_was_looked_up(piece.before) & (put_in == batch))[piece.told.number]
        found = without(piece.found, piece.told, shown)
        kept = np.unique(piece.told.number[~shown])
        return _Piece(piece.changes, found, piece.told.where(~shown), _of_keys(piece.before, kept))

    def _images(self, piece: _Piece, most_bytes: int) -> Images | Lost | TooMuch:
        present = _filled(piece.before.entries["present"], value=False)
        other = present if self._rules.order_column else _was_looked_up(piece.before)
        return images(
            piece.changes,
            piece.found,
            piece.told,
            Known(present, joined(piece.before.rows), other),
            columns=self._rows.table.columns,
            skips_equal=self._rules.skips_equal,
            most_bytes=most_bytes,
            severed=piece.severed,
        )

    def _timely(self, piece: _Piece, batch: int) -> tuple[_Piece, Indices]:
        """Only the events that are not late, and the order that each key has afterwards."""
        told = piece.told
        if not self._rules.order_column:
            return piece, np.full(told.count, batch)
        puts = ~told.removes
        given = np.full(len(told), NO_ORDER)
        rows = column_of(piece.changes["new"], self._rules.order_column)
        given[puts] = self._order_of(rows.take(index(told.change[puts])))
        found = timely(told, given, _filled(piece.before.entries["order_key"], NO_ORDER))
        kept = np.unique(told.number[found.events])
        only = told.where(found.events), _of_keys(piece.before, kept)
        return _Piece(piece.changes, piece.found, *only, found.severed[found.events]), found.order[kept]

    @staticmethod
    def _order_of(column: Any) -> Indices:
        """A column of whole numbers or of time as numbers of the same order."""
        whole = column.cast(pa.int32()) if pt.is_date32(column.type) else column
        if whole.null_count:
            raise StateError("the column named by orderColumn holds a null; declare it NOT NULL, or name another")
        return np.asarray(whole.cast(pa.int64()).to_numpy(), np.int64)


def _updates(
    state: UpsertState, keys: pa.RecordBatch, present: Mask, rows: pa.RecordBatch, order: Indices, tie: Indices
) -> Updates:
    heads: list[Any] = [pa.array(order, pa.int64()), pa.array(tie, pa.int64()), pa.array(present)]
    stored = pa.Table.from_arrays(list[Any](rows.columns), schema=state.layout.row)
    return Updates(_table(keys), pa.table(heads, names=["order_key", "order_tie", "present"]), stored)


def _of_keys(found: Found, numbers: Indices) -> Found:
    """What there is of only these keys."""
    if len(numbers) == found.entries.num_rows:
        return found
    return Found(found.entries.take(index(numbers)), found.rows.take(index(numbers)), found.stats)


def _was_looked_up(found: Found) -> Mask:
    """Of which keys there is a row that was looked up."""
    place = _filled(found.entries["order_tie"], 0) & SNAPSHOT_ORDINAL
    looked_up: Mask = _filled(found.entries["present"], value=False)
    looked_up &= (place >= LOOKED_UP) & (place < SNAPSHOT_ORDINAL)
    return looked_up


def _filled(column: Any, value: object) -> Any:
    return column.fill_null(value).to_numpy()


def _table(rows: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([rows])


def require_order(table: TableSchema, name: str) -> None:
    """Refuses a column by which rows cannot be ordered as numbers."""
    if name not in table.columns.names:
        raise OptionsError(f"orderColumn names {name!r}, and the stream has columns {', '.join(table.columns.names)}")
    kind = table.columns.field(name).type
    if not (pt.is_signed_integer(kind) or pt.is_timestamp(kind) or pt.is_date32(kind)):
        raise OptionsError(
            f"orderColumn names {name!r} of type {kind}; expected a column of whole numbers, dates or timestamps"
        )


def _truncation(changes: pa.RecordBatch) -> pa.RecordBatch:
    columns: list[Any] = [
        pa.nulls(changes.num_rows, changes["new"].type),
        pa.array(["truncate"] * changes.num_rows, pa.string()),
        changes["version"],
        changes["timestamp"],
        pa.nulls(changes.num_rows, changes.schema.field("unchanged").type),
    ]
    return pa.RecordBatch.from_arrays(columns, names=list(MARKED_COLUMNS))


def _token(barrier: Barrier) -> str:
    return f"{barrier.epoch.number} {barrier.epoch.position}"
