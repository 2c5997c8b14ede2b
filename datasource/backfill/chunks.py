"""The snapshot rows of one batch, in chunks that are staged: who reads which, and at which state.

They follow from the batch's two offsets and the staging directory, so that a batch which is run again gives the same
rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from backfill.epoch import Epoch
from backfill.handoff import Chunk, SnapshotPart, read, require_columns
from backfill.offset import Barrier
from backfill.options import StreamOptions
from backfill.plan import MIN_SPLIT_ROWS, Piece, pieces, split
from backfill.rows import RowFormat
from backfill.staging import Staging
from backfill.staging.batch_files import BatchFiles
from backfill.staging.manifest import AsPlanned, GivenUp, Manifest, PlannedSplit, ReadLater
from backfill.upstream import Pin, Upstream
from backfill.upstream.added import NOTHING_ADDED, Added


@dataclass(frozen=True, slots=True)
class Chunks:
    """The snapshot rows of the batch that ends at `end`."""

    upstream: Upstream
    staging: Staging
    rows: RowFormat
    options: StreamOptions
    end: Barrier

    def parts(self, begin: Barrier | None, pin: Pin | None) -> tuple[tuple[Chunk | SnapshotPart, ...], Pin | None]:
        """What readers read after `begin`, and the pin that is held by then, if any; a `SnapshotPart` needs it.

        Chunks that were staged are read from their files. The others are read at `pin` if it is the state that the
        batch was planned in, or one that was taken to read them before; else at the planned state again where the
        upstream keeps it; else at a later one, which the manifest then names. Rows that are emitted once more are never
        read later than planned: they are left to another batch.
        """
        if not self.end.has_manifest:
            return (), pin
        manifest = self.staging.require_planned(self.end, pieces_to_read(begin, self.end))
        staged = self._staged(manifest)
        if not self._has_state(manifest, staged, pin):
            pin = self.upstream.repin(self.end.epoch)
            manifest = self._planned_anew(manifest, staged, pin)
            staged = self._staged(manifest)
        added = self._added()
        parts = [
            self._chunk(name, added) if pin is None or name in staged else self._unread(name, item, pin, added)
            for name, item in manifest.chunks.items()
        ]
        return tuple(parts), pin

    def require_columns(self) -> None:
        """Raises SchemaChangedError where a staged chunk cannot be read with the columns that the stream carries."""
        if self.end.has_manifest:
            manifest, added = self.staging.require_manifest(self.end), self._added()
            for name in self._staged(manifest):
                require_columns(self._chunk(name, added), self.rows)

    @property
    def _files(self) -> BatchFiles:
        return self.staging.of_batch(self.end.epoch.number)

    def _added(self) -> Added:
        """The columns that a chunk may lack.

        None in a snapshot-only stream, in which all rows have the same columns. None either where rows come again: the
        sink may have their values in such a column already.
        """
        has_all = self.options.only_snapshot or self.end.took_again
        return NOTHING_ADDED if has_all else self.upstream.added()

    def read_rest(self, pin: Pin) -> None:
        """Stages the chunks that no reader has read to their ends, if they are to be read at this pin.

        They are not if the pin is that of the next batch, planned and never logged by Spark. A sink may leave rows
        unread: Spark, for one, skips one side of a join if the other is empty.
        """
        manifest = self.staging.require_manifest(self.end)
        staged = self._staged(manifest)
        for name, item in manifest.chunks.items():
            if name not in staged and self._fits(item, pin):
                deque(read(self._unread(name, item, pin), self.upstream.reader(), self.rows), maxlen=0)

    def _staged(self, manifest: Manifest) -> tuple[str, ...]:
        """The names of the chunks that are staged, so that nothing of them has to be read from the database."""
        return tuple(name for name in manifest.chunks if self._chunk(name).is_staged)

    def _has_state(self, manifest: Manifest, staged: Collection[str], pin: Pin | None) -> bool:
        """Whether all chunks that are not staged are to be read at this pin."""
        return all(name in staged or self._fits(item, pin) for name, item in manifest.chunks.items())

    def _fits(self, planned: PlannedSplit, pin: Pin | None) -> bool:
        """Whether this pin is the one at which to read a split that was not given up."""
        if pin is None:
            return False
        if isinstance(planned.reading, ReadLater):
            return pin.epoch.position == planned.reading.position
        return pin.epoch == self.end.epoch

    def _planned_anew(self, manifest: Manifest, staged: tuple[str, ...], pin: Pin) -> Manifest:
        """The manifest with what is not `staged` planned anew for the state of this pin; the same manifest where that
        is the state it was planned in, as with an upstream that keeps its states.

        A chunk may have been staged since `staged` was looked up, by a reader of an earlier driver that still runs. It
        is in that driver's sink then, unless its reader has seen the new plan (`BatchFiles.require_still_planned`). So
        this looks again.
        """
        if self._has_state(manifest, staged, pin):
            return manifest
        plan_anew = self._given_up if self.end.took_again else self._read_later
        while True:
            anew = plan_anew(manifest, staged, pin)
            self._files.keep_manifest(anew)
            before, staged = staged, self._staged(manifest)
            if staged == before:
                return anew

    def _read_later(self, manifest: Manifest, staged: Collection[str], pin: Pin) -> Manifest:
        """The manifest with the lost chunks to be read at this later state; with all chunks in a snapshot-only stream,
        whose rows are of one state.
        """
        all_or_none = self.options.only_snapshot and len(staged) < len(manifest.chunks)
        return manifest.with_others(lambda item: item.reread_at(pin.epoch.position), () if all_or_none else staged)

    def _given_up(self, manifest: Manifest, staged: Collection[str], _: Pin) -> Manifest:
        """The manifest without the chunks that were lost; their rows are taken in a later batch (`again`).

        The sink has these rows already. A chunk read at a later state would lack the rows deleted until then, whose
        deletes could not be told from those of rows that came back; and its rows would be followed by older versions of
        themselves. Without the chunk, the sink is right at this barrier and at all others.
        """
        return manifest.with_others(lambda item: replace(item, reading=GivenUp()), staged)

    def _chunk(self, name: str, added: Added = NOTHING_ADDED) -> Chunk:
        return Chunk(self._files, self.end.epoch, name, added)

    def _unread(self, name: str, planned: PlannedSplit, pin: Pin, added: Added = NOTHING_ADDED) -> SnapshotPart:
        return SnapshotPart(
            self._chunk(name, added),
            planned.split,
            pin.token,
            exact=planned.reading == AsPlanned(),
            stage_before_emit=self.options.stage_before_emit,
        )


def planned_manifest(to_read: Sequence[Piece], epoch: Epoch, readers: int) -> Manifest:
    """Divides these snapshot rows, of the batch that ends at this epoch, among at most so many readers."""
    splits = split(to_read, count=readers, min_rows=MIN_SPLIT_ROWS)
    return Manifest(tuple(PlannedSplit.of(item, epoch.position) for item in splits))


def pieces_to_read(begin: Barrier | None, end: Barrier) -> tuple[Piece, ...]:
    """The snapshot rows of a batch, as its two offsets alone determine them."""
    if end.again is None or not end.took_again:
        return pieces(None if begin is None else begin.progress, end.progress)
    before = None if begin is None else begin.again
    goes_on = before is not None and before.request == end.again.request
    return pieces(before.progress if before is not None and goes_on else None, end.again.progress)
