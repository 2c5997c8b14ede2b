"""What one batch reads: the changes between two epochs, marked, then the snapshot rows at the second.

Everything here follows from the batch's two offsets, the change log and the staging directory, so that a batch which
is run again gives the same rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa

from backfill.batches import joined, together
from backfill.changes import TRUNCATE
from backfill.counts import Tally
from backfill.errors import SnapshotGoneError, TruncateError
from backfill.handoff import Part, SnapshotPart, pack, read
from backfill.manifest import Manifest, StagedSplit
from backfill.mark import Forwarded, Indices, Mask, halves, mark, refuse_truncate
from backfill.offset import Barrier
from backfill.options import OnTruncate, StartupMode, StreamOptions
from backfill.plan import MIN_SPLIT_ROWS, Piece, pieces, split
from backfill.progress import Frontier, Progress
from backfill.rows import RowFormat
from backfill.staging import Staging
from backfill.upsert import LastRows, Marked
from backfill.upstream import Pin, Upstream
from backfill.vnode import WHOLE_TABLE, Coverage
from backfill.whole_rows import BYTES_AT_ONCE, ROWS_AT_ONCE


@dataclass(frozen=True, slots=True)
class Batch:
    """The readers' parts of single batches of one stream."""

    upstream: Upstream
    staging: Staging
    rows: RowFormat
    options: StreamOptions
    last_rows: LastRows | None = None
    tally: Tally = field(default_factory=Tally)
    """What becomes of the changes, added up while they are read."""

    @property
    def _emits(self) -> bool:
        """Whether truncations go forward."""
        return self.options.on_truncate is OnTruncate.EMIT

    def changes(self, begin: Barrier | None, end: Barrier, pin: Pin | None) -> tuple[Part, ...]:
        """The changes from `begin` to `end` to keys that had been emitted at `begin`; `pin` is what is held, if any."""
        readers = self.options.num_partitions
        if self.last_rows is not None:
            marked, look_up = partial(self._halves, begin, end), partial(self._look_up, end, pin)
            return self.last_rows.changes(begin, end, self.staging, readers, marked, look_up)
        return pack(self._rows(begin, end), self.rows.schema, self.staging, end.epoch.number, readers)

    def _rows(self, begin: Barrier | None, end: Barrier) -> Iterator[pa.RecordBatch]:
        """Output rows of the changes that go forward, as the log tells them."""
        first = 0
        for changes, forwarded in self._forwarded(begin, end):
            found = mark(changes, key=self.rows.table.key, forwarded=forwarded, truncates=self._emits)
            yield self.rows.change_rows(found, end.epoch, first)
            first += found.num_rows

    def _halves(self, begin: Barrier | None, end: Barrier) -> Marked:
        """Changes and what of them goes forward; many at once, since each look into the last rows takes its time."""
        for changes, forwarded in self._forwarded(begin, end):
            if self._emits and changes["op"][0].as_py() == TRUNCATE:
                yield changes, None
            else:
                yield changes, halves(changes, key=self.rows.table.key, forwarded=forwarded)

    def _forwarded(self, begin: Barrier | None, end: Barrier) -> Iterator[tuple[pa.RecordBatch, Forwarded]]:
        """The changes from `begin` to `end`, and what decides which of their keys go forward."""
        coverage = () if begin is None else _coverage(begin.progress)
        if begin is None or not coverage:
            return
        cleared = False
        for changes in self._read(begin, end):
            refuse_truncate(changes, self.options.on_truncate)
            emptied = self._emits & (np.logical_or.accumulate(changes["op"].to_numpy() == TRUNCATE) | cleared)
            if emptied.any():
                self._require_no_later_ahead(end)

            def forwarded(
                keys: pa.RecordBatch, rows: Indices, changes: pa.RecordBatch = changes, emptied: Mask = emptied
            ) -> Mask:
                passes = self._within(keys, coverage) & ~(self._shown(keys, rows, changes, end) & ~emptied[rows])
                self.tally.add(_distinct(rows, changes.num_rows), _distinct(rows[passes], changes.num_rows))
                return passes

            yield changes, forwarded
            cleared = bool(emptied[-1:].any())

    def _require_no_later_ahead(self, end: Barrier) -> None:
        """Raises where the batches after this one will go by rows that were read later, and that a truncation in this
        one takes away again. A batch that was planned with `onTruncate=emit` goes far enough.
        """
        if not all(self.upstream.reached(end.epoch, item.position) for item in end.ahead):
            raise TruncateError(
                "the table was truncated, and this batch was planned with another onTruncate: it ends before the state "
                "at which rows were read again after a crash, and batches after it could not tell which of them are "
                "gone. Start over with a fresh checkpointLocation, onExistingState=restart and an empty sink; or set "
                "onTruncate=ignore to keep the rows downstream"
            )

    def _look_up(self, end: Barrier, pin: Pin | None, keys: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of these keys at the batch's end; at a later state where that has gone, as after a crash."""
        if pin is not None and pin.epoch == end.epoch:
            with suppress(SnapshotGoneError):
                return self._looked_up(pin, keys)
        later = self.upstream.repin(end.epoch)
        try:
            return self._looked_up(later, keys)
        finally:
            self.upstream.release(later)

    def _looked_up(self, pin: Pin, keys: pa.RecordBatch) -> pa.RecordBatch:
        found = self.upstream.lookup(pin, keys)
        return joined(pa.Table.from_batches(found, self.rows.table.columns))

    def _read(self, begin: Barrier, end: Barrier) -> Iterator[pa.RecordBatch]:
        read = self.upstream.changes(begin.epoch, end.epoch)
        if self.last_rows is None:
            return read
        return (
            part for batch in together(read, ROWS_AT_ONCE, BYTES_AT_ONCE) for part in self._cut_at_truncations(batch)
        )

    def _cut_at_truncations(self, changes: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The changes in pieces, with each truncation that is emitted alone."""
        truncates = (changes["op"].to_numpy() == TRUNCATE) & self._emits
        at = np.flatnonzero(truncates).tolist()
        ends = sorted({*at, *(place + 1 for place in at), changes.num_rows})
        begins = [0, *ends]
        return (changes.slice(one, other - one) for one, other in zip(begins, ends, strict=False) if other > one)

    def _shown(self, keys: pa.RecordBatch, rows: Indices, changes: pa.RecordBatch, end: Barrier) -> Mask:
        """Which changes the sink has seen the result of, because it got the key's row as of a later state.

        A truncation that is emitted takes those rows away again, so what comes after it is new to the sink.
        """
        found = np.zeros(keys.num_rows, np.bool_)
        for item in end.ahead:
            shown = self.upstream.shown(item.position, changes).to_numpy(zero_copy_only=False)
            found |= shown[rows] & self._within(keys, (item.range,))
        return found

    def _within(self, keys: pa.RecordBatch, coverage: Coverage) -> Mask:
        if coverage == (WHOLE_TABLE,):
            return np.ones(keys.num_rows, np.bool_)
        return self.upstream.covered(keys, coverage).to_numpy(zero_copy_only=False)

    def snapshot(self, begin: Barrier | None, end: Barrier, pin: Pin | None) -> tuple[tuple[Part, ...], Pin | None]:
        """The snapshot rows of the batch, and the pin its readers need, if any.

        Chunks that were staged are read from there. Those that were not are read at `pin` if it is the state the
        batch was planned in, or was taken for the same purpose before; else at a new, later state, which the manifest
        then names. Rows that are emitted once more are never read later: then they are left to another batch.
        """
        if not end.has_manifest:
            return (), None
        manifest = self.staging.kept_manifest(end)
        done = self._done(manifest, end)
        fits = [_fits(item, end, pin) for item in manifest.splits]
        if not all(one or other for one, other in zip(done, fits, strict=True)):
            if _pieces_of_first_time(begin, end):
                manifest, pin = self._read_later(manifest, done, end)
            else:
                manifest = self._give_up(manifest, done, end)
            done = self._done(manifest, end)
        token = None if pin is None else pin.token
        parts = [
            self._part(end, manifest, at, None if done[at] else token)
            for at, item in enumerate(manifest.splits)
            if not item.given_up
        ]
        return tuple(parts), None if all(done) else pin

    def read_rest(self, end: Barrier, pin: Pin) -> None:
        """Stages what no reader has read to its end of the batch that ended at `end`, as far as `pin` shows it.

        It is no error to leave rows unread: Spark drops one side of a join where the other is empty.
        """
        manifest = self.staging.kept_manifest(end)
        for at, (item, done) in enumerate(zip(manifest.splits, self._done(manifest, end), strict=True)):
            if not done and _fits(item, end, pin):
                rest = self._part(end, manifest, at, pin.token)
                deque(read(rest, self.upstream.reader(), self.rows), maxlen=0)

    def _done(self, manifest: Manifest, end: Barrier) -> list[bool]:
        """For each split, whether nothing of it has to be read from the database."""
        return [
            item.given_up or self.staging.exists(end.epoch.number, manifest.chunk(at))
            for at, item in enumerate(manifest.splits)
        ]

    def _read_later(self, manifest: Manifest, staged: list[bool], end: Barrier) -> tuple[Manifest, Pin]:
        """Moves the chunks that were lost to a state of now. A snapshot-only stream is of one state: all of them."""
        pin = self.upstream.repin(end.epoch)
        keep = staged if self.options.startup_mode is not StartupMode.SNAPSHOT else [False] * len(staged)
        splits = [
            item if done else item.reread_at(pin.epoch.position)
            for item, done in zip(manifest.splits, keep, strict=True)
        ]
        again = Manifest(tuple(splits))
        self.staging.keep_manifest(end.epoch.number, again)
        return again, pin

    def _give_up(self, manifest: Manifest, done: list[bool], end: Barrier) -> Manifest:
        """Leaves out the chunks that were lost; their rows are taken in a later batch (`again.going_on`).

        They belong to rows that the sink has already. Read at a later state they would lack the rows deleted until
        then, whose deletes could not be told from those of rows that came back; and they would be followed by older
        versions of themselves. Left out, the sink is right at this barrier and at all others.
        """
        splits = [
            item if kept else replace(item, given_up=True) for item, kept in zip(manifest.splits, done, strict=True)
        ]
        left = Manifest(tuple(splits))
        self.staging.keep_manifest(end.epoch.number, left)
        return left

    def _part(self, end: Barrier, manifest: Manifest, index: int, token: str | None) -> Part:
        staged = manifest.splits[index]
        return SnapshotPart(
            self.staging,
            end.epoch,
            manifest.chunk(index),
            staged.split,
            token,
            exact=staged.position is None,
            staged_first=self.options.stage_before_emit,
        )


def cut(rows: Sequence[Piece], staging: Staging, number: int, readers: int) -> None:
    """Fixes who reads which of these snapshot rows of the batch that ends at this epoch number."""
    splits = split(rows, count=readers, min_rows=MIN_SPLIT_ROWS)
    staging.keep_manifest(number, Manifest(tuple(StagedSplit(item) for item in splits)))


def rows_to_read(begin: Barrier | None, end: Barrier) -> tuple[Piece, ...]:
    """The snapshot rows of a batch, as the offsets alone say."""
    return _pieces_of_first_time(begin, end) or _pieces_again(begin, end)


def _distinct(places: Indices, among: int) -> int:
    """How many of so many places there are; a change stands there with each of its halves."""
    there = np.zeros(among, np.bool_)
    there[places] = True
    return int(np.count_nonzero(there))


def _pieces_of_first_time(begin: Barrier | None, end: Barrier) -> tuple[Piece, ...]:
    return pieces(None if begin is None else begin.progress, end.progress)


def _pieces_again(begin: Barrier | None, end: Barrier) -> tuple[Piece, ...]:
    before = None if begin is None else begin.again
    if end.again is None:
        return ()
    same = before is not None and before.request == end.again.request
    return pieces(before.progress if before is not None and same else None, end.again.progress)


def _fits(staged: StagedSplit, end: Barrier, pin: Pin | None) -> bool:
    if pin is None:
        return False
    return pin.epoch == end.epoch if staged.position is None else pin.epoch.position == staged.position


def _coverage(progress: Progress) -> Coverage:
    return progress.coverage if isinstance(progress, Frontier) else (WHOLE_TABLE,)
