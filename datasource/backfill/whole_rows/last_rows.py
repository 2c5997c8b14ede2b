"""`changelog=full` and `envelope=upsert`: what the log leaves out, from the last row of every key the sink holds.

The rows are in an upsert state beside the stream's progress, which only the driver opens. A batch brings it from one
barrier to the next in a single transaction, whose token is the barrier's epoch:

    what the state holds          token 7: the sink's rows at barrier 7, but for the snapshot rows of batch 7
    batch 8 is planned            puts the staged chunks of batch 7, which Spark has committed
                                  makes the images of batch 8's changes and stages them, puts the new rows
                                  lists the staged files; commits, and the token is 8
    batch 8 is planned again      the token is 8 already: the list says which files there are

So a crash of the process before the commit leaves the state as it was, and the same rows are made anew; after it, they
are read. The state follows from the stream's own output and from nothing else. Where it is lost, or belongs to another
barrier, it cannot be made from the checkpoint, which is an error and not a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa

from backfill.arrow.batches import coalesced
from backfill.arrow.sameness import canonical
from backfill.errors import OptionsError, StagingError, StateError
from backfill.handoff import StagedChanges, committed_chunk, require_columns
from backfill.mark import Halves, marked_rows
from backfill.offset import Barrier
from backfill.packing import stage, staged
from backfill.rows import ORDINAL_BITS, SNAPSHOT_ORDINAL, RowFormat
from backfill.staging import Staging
from backfill.state_dir.failures import as_ours
from backfill.upstream.added import Added
from backfill.whole_rows.completing import BYTES_AT_ONCE, ROWS_AT_ONCE, Rules, WholeRows, put
from backfill.whole_rows.images import KnownRows
from backfill.whole_rows.late import order_of, require_order
from backfill.whole_rows.lookup import LookUp
from backfill.wording import FRESH_START, another_option
from backfill_state.upsert import UpsertLayout, UpsertState

Marked: TypeAlias = Iterator[tuple[pa.RecordBatch, Halves, bool]]
"""Changes, which halves of them go forward, and whether they are a truncation that does, which stands alone."""


@dataclass(frozen=True, slots=True)
class Logged:
    """The changes of a batch, as the log has them."""

    begin: Barrier | None
    """None in the first batch, which has no changes."""

    end: Barrier
    marked: Marked
    look_up: LookUp
    """Finds the rows of which a value is lost; each is emitted in place of its key's changes."""


_ORDERED_BY: Final = " ordered by "
"""Stands in a token between the epoch and the column that rows are ordered by, where there is one."""


class LastRows:
    """The rows a stream has emitted, by key, and the images that follow from them."""

    def __init__(self, open_state: Callable[[UpsertLayout], UpsertState], rows: RowFormat, rules: Rules) -> None:
        if rules.order_column:
            require_order(rows.table, rules.order_column)
        self._open_state = open_state
        self._rows = rows
        self._rules = rules
        self._state: UpsertState | None = None
        self._figures: dict[str, int] = {}

    @property
    def _columns(self) -> list[str]:
        """The columns of a stored row: all but the key's, or the key's again where there are no others."""
        return list(self._rows.table.values or self._rows.table.key)

    def _state_of(self, stream: str) -> UpsertState:
        table = self._rows.table
        row = pa.schema([table.columns.field(name) for name in self._columns])
        return self._open_state(UpsertLayout(stream, table.key_schema, row))

    def _opened(self, stream: str) -> UpsertState:
        if self._state is None:
            self._state = self._state_of(stream)
        return self._state

    def figures(self) -> dict[str, int]:
        """How much the state holds, for whoever watches; empty before the first batch of this process.

        The figures are of the moment just before a batch was committed, as asking then needs no transaction of its own.
        Only the file's size is of the moment after: the file has the batch by then, and the next one may be days away.
        """
        return dict(self._figures)

    def close(self) -> None:
        if self._state is not None:
            self._state.close()

    # -- from one barrier to the next ------------------------------------------------------------------------------

    def changes(self, logged: Logged, staging: Staging, readers: int, added: Added) -> tuple[StagedChanges, ...]:
        """The changes as parts, for at most so many readers.

        Brings the state to the batch's end. Gives the same files again for the same barriers, though the table may have
        got columns since; where they lack one that is not `added`, SchemaChangedError is raised and the state stays as
        it was.
        """
        begin, end = logged.begin, logged.end
        files = staging.of_batch(end.epoch.number)
        with as_ours():
            state = self._opened(end.stream)
            if begin is None:
                # The first batch has no changes. What is there, if anything, is of a stream that was given up.
                state.reset()
            with state.batch(self._token(end)) as new:
                if begin is not None:
                    self._require_standing(state, begin, end)
                if new:
                    if begin is not None:
                        self._put_snapshot(state, begin, staging)
                    count = stage(self._output(state, logged), self._rows.schema, files)
                    files.keep_changes(count)
                else:
                    count = files.change_files()
                    for part in staged(files, count, readers, added):
                        require_columns(part, self._rows)
                figures = _figures(state)
            self._figures = {**figures, "state_file_bytes": state.file_bytes()}
        return staged(files, count, readers, added)

    def require_standing(self, begin: Barrier, end: Barrier) -> None:
        """Raises StateError unless the state is that of one of these barriers, OptionsError where its rows are in the
        order of another column.

        Called when the query starts: the first change, which would show it as well, may be hours away. The state is
        closed again, since an idle stream needs none.
        """
        with as_ours(), self._state_of(begin.stream) as state:
            self._require_standing(state, begin, end)

    def _require_standing(self, state: UpsertState, begin: Barrier, end: Barrier) -> None:
        """The same for a state that is open: it may stand at the batch's beginning, or at its end already."""
        token = state.token()
        if token in (self._token(begin), self._token(end)):
            return
        stands, _, began = (token or "").partition(_ORDERED_BY)
        if stands in (_epoch_of(begin), _epoch_of(end)):
            # Stored rows are ordered by the column's values, or else by the batch that put them: not comparable.
            now = self._rules.order_column
            raise OptionsError(another_option(f"orderColumn={began or '(none)'}", f"orderColumn={now or '(none)'}"))
        found = "there is none" if token is None else f"stateDir has the last rows of epoch {token.partition(' ')[0]}"
        raise StateError(
            f"the stream goes on from epoch {begin.epoch.number} and needs the last row of every key as of then, but "
            f"{found}. They were lost or are in another stateDir, or the stream ran without changelog=full or from "
            "another checkpoint meanwhile, or it was resumed from stateDir (onExistingState=resume), where the "
            "record may be some batches behind the last rows. Name the stateDir that has them; or read everything "
            f"again with {FRESH_START}; or leave out changelog and envelope, to get changes as the log has them"
        )

    def _token(self, barrier: Barrier) -> str:
        column = self._rules.order_column
        return _epoch_of(barrier) + (f"{_ORDERED_BY}{column}" if column else "")

    def _put_snapshot(self, state: UpsertState, begin: Barrier, staging: Staging) -> None:
        """Puts the snapshot rows of the batch that ended at `begin`."""
        number = begin.epoch.number
        files = staging.of_batch(number)
        names = staging.require_manifest(begin).chunks
        unread = sum(not files.exists(name) for name in names)
        if unread:
            raise StagingError(
                f"the batch up to epoch {number} was committed, but {unread} of its {len(names)} chunks were not "
                "read, so the last rows lack theirs. Either the sink did not read the whole batch (as with show(), "
                "limit() or a join with an empty table in foreachBatch) and the query ended before the driver had "
                "read the rest, or stagingDir has lost the chunks. Let the sink read each batch to its end, and "
                f"start over with {FRESH_START}"
            )
        read = (batch for name in names for batch in committed_chunk(files, name, self._rows.table))
        for rows in coalesced(read, ROWS_AT_ONCE, BYTES_AT_ONCE):
            keys = canonical(rows.select(self._rows.table.key))
            orders = np.full(rows.num_rows, number), np.full(rows.num_rows, SNAPSHOT_ORDINAL)
            if self._rules.order_column:
                orders = order_of(rows[self._rules.order_column]), (orders[0] << ORDINAL_BITS) + orders[1]
            known = KnownRows(np.ones(rows.num_rows, np.bool_), rows.select(self._columns))
            put(state, keys, known, *orders)

    def _output(self, state: UpsertState, logged: Logged) -> Iterator[pa.RecordBatch]:
        """Output rows of marked changes. The rows after each portion are in the state before the next one is made."""
        epoch = logged.end.epoch
        whole_rows = WholeRows(state, self._rows.table, self._rules, logged.look_up, epoch.number)
        first = place = 0
        for changes, found, truncates in logged.marked:
            if truncates:
                state.clear()
                made = marked_rows(changes, found, truncates=True)
                yield self._rows.change_rows(made, epoch, first)
                first += made.num_rows
                continue
            begin = 0
            while not (rest := found.of(slice(begin, None))).nothing:
                completed = whole_rows.complete(changes.slice(begin), rest, place)
                yield self._rows.change_rows(completed.marked, epoch, first)
                first += completed.marked.num_rows
                place += completed.events
                begin += completed.changes


def _figures(state: UpsertState) -> dict[str, int]:
    totals = state.totals()
    return {
        "state_rows": totals.values,
        "state_row_bytes": totals.size,
        "state_memory_bytes": state.memory_bytes(),
    }


def _epoch_of(barrier: Barrier) -> str:
    return f"{barrier.epoch.number} {barrier.epoch.position}"
