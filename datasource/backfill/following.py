"""The changes of one batch: which of those in the log go forward, and where their values come from.

They follow from the batch's two offsets and the log, so that a batch which is run again gives the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa

from backfill.arrow.arrays import Indices, Mask, mask
from backfill.arrow.batches import as_one_batch, coalesced
from backfill.changes import TRUNCATE
from backfill.counts import Tally
from backfill.errors import SnapshotGoneError, TruncateError
from backfill.handoff import Part
from backfill.mark import Halves, mark, marked_rows, refuse_truncate
from backfill.offset import Barrier
from backfill.options import OnTruncate, StreamOptions
from backfill.packing import pack
from backfill.rows import RowFormat
from backfill.staging import Staging
from backfill.upstream import Pin, Upstream
from backfill.vnode import WHOLE_TABLE, Coverage
from backfill.whole_rows.completing import BYTES_AT_ONCE, ROWS_AT_ONCE
from backfill.whole_rows.last_rows import LastRows, Logged, Marked


@dataclass(frozen=True, slots=True)
class Following:
    """The changes from `begin` to `end` to keys that had been emitted at `begin`, which is None in the first batch."""

    upstream: Upstream
    rows: RowFormat
    options: StreamOptions
    begin: Barrier | None
    end: Barrier
    pin: Pin | None
    """The pin that is held, if any."""

    tally: Tally = field(default_factory=Tally)
    """What becomes of the changes, added up while they are read."""

    def parts(self, staging: Staging, last_rows: LastRows | None) -> tuple[Part, ...]:
        """The parts that bring these changes to readers: as the log has them, or completed from the last rows."""
        readers = self.options.num_partitions
        if last_rows is not None:
            logged = Logged(self.begin, self.end, self._marked(), self._look_up)
            return last_rows.changes(logged, staging, readers, self.upstream.added())
        return pack(self._rows(), self.rows.schema, staging.of_batch(self.end.epoch.number), readers)

    def _rows(self) -> Iterator[pa.RecordBatch]:
        """Output rows of the changes that go forward, as the log has them."""
        first = 0
        for changes, found in self._mark(self._logged()):
            rows = marked_rows(changes, found, truncates=self._emits_truncations)
            yield self.rows.change_rows(rows, self.end.epoch, first)
            first += rows.num_rows

    def _marked(self) -> Marked:
        """Changes, which of them go forward, and whether they are a truncation that does; many at once, since each look
        into the last rows takes its time.
        """
        for changes, found in self._mark(self._logged_together()):
            yield changes, found, self._emits_truncations and changes["op"][0].as_py() == TRUNCATE

    # -- reading the log -------------------------------------------------------------------------------------------

    def _logged(self) -> Iterator[pa.RecordBatch]:
        """All changes of the log in this batch; none where no key has been emitted, as none would go forward."""
        if self.begin is not None and self._coverage:
            yield from self.upstream.changes(self.begin.epoch, self.end.epoch)

    def _logged_together(self) -> Iterator[pa.RecordBatch]:
        """The same in larger batches, but with each truncation that is emitted as a batch of its own."""
        for changes in coalesced(self._logged(), ROWS_AT_ONCE, BYTES_AT_ONCE):
            truncates = (changes["op"].to_numpy() == TRUNCATE) & self._emits_truncations
            at = np.flatnonzero(truncates).tolist()
            ends = sorted({*at, *(place + 1 for place in at), changes.num_rows})
            for one, other in zip([0, *ends], ends, strict=False):
                if other > one:
                    yield changes.slice(one, other - one)

    # -- what goes forward -----------------------------------------------------------------------------------------

    @property
    def _emits_truncations(self) -> bool:
        """Whether truncations go forward."""
        return self.options.on_truncate is OnTruncate.EMIT

    @property
    def _coverage(self) -> Coverage:
        """The keys that had been emitted."""
        return () if self.begin is None else self.begin.progress.coverage

    def _mark(self, logged: Iterator[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, Halves]]:
        """The changes, and which halves of them go forward."""
        coverage, table, cleared = self._coverage, self.upstream.identity().table, False
        for changes in logged:
            refuse_truncate(changes, self.options.on_truncate, table)
            truncates = changes["op"].to_numpy() == TRUNCATE
            emptied = self._emits_truncations & (np.logical_or.accumulate(truncates) | cleared)
            if emptied.any():
                self._require_no_later_ahead()
            forwarded = partial(self._goes_forward, coverage, changes, emptied)
            found = mark(changes, key=self.rows.table.key, forwarded=forwarded)
            self.tally.add(int(np.count_nonzero(~truncates)), found.change_count)
            yield changes, found
            cleared |= bool(emptied.any())

    def _goes_forward(
        self, coverage: Coverage, changes: pa.RecordBatch, emptied: Mask, keys: pa.RecordBatch, rows: Indices
    ) -> Mask:
        """For each of these keys, whether it goes forward; `rows` are the numbers of the changes they belong to.

        `emptied` tells which changes have a truncation before them that is emitted. It takes away again what the sink
        has seen, so what comes after it is new to the sink.
        """
        return self._within(keys, coverage) & ~(self._shown(keys, rows, changes) & ~emptied[rows])

    def _shown(self, keys: pa.RecordBatch, rows: Indices, changes: pa.RecordBatch) -> Mask:
        """For each of these keys, whether the sink has seen its change, because it got the row as of a later state."""
        found = np.zeros(keys.num_rows, np.bool_)
        for item in self.end.ahead:
            shown = mask(self.upstream.shown(item.position, changes))
            found |= shown[rows] & self._within(keys, (item.range,))
        return found

    def _within(self, keys: pa.RecordBatch, coverage: Coverage) -> Mask:
        if not keys.num_rows or coverage == (WHOLE_TABLE,):
            return np.ones(keys.num_rows, np.bool_)
        return mask(self.upstream.covered(keys, coverage))

    def _require_no_later_ahead(self) -> None:
        """Raises if this batch, which has a truncation that is emitted, ends before a state at which rows were read
        ahead.

        Later batches would leave out changes which that state shows, although the truncation has taken its rows away. A
        batch that was planned with `onTruncate=emit` always goes that far.
        """
        if not all(self.upstream.reached(self.end.epoch, item.position) for item in self.end.ahead):
            raise TruncateError(
                f"the table {self.upstream.identity().table} was truncated, and this batch was planned with another "
                "onTruncate: it ends before the state at which rows were read again after a crash, so later batches "
                "could not know which of them are gone. Start over with a fresh checkpointLocation, "
                "onExistingState=restart and an empty sink; or set onTruncate=ignore to keep the rows downstream"
            )

    # -- values that the log left out ------------------------------------------------------------------------------

    def _look_up(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of these keys at the batch's end; at a later state where that one is gone, as after a crash."""
        if self.pin is not None and self.pin.epoch == self.end.epoch:
            with suppress(SnapshotGoneError):
                return self._looked_up(self.pin, keys)
        later = self.upstream.repin(self.end.epoch)
        try:
            return self._looked_up(later, keys)
        finally:
            self.upstream.release(later)

    def _looked_up(self, pin: Pin, keys: pa.RecordBatch) -> pa.RecordBatch:
        found = self.upstream.lookup(pin, keys)
        return as_one_batch(pa.Table.from_batches(found, self.rows.table.columns))
