"""Chunks kept so that a batch can be run again with the same rows, for an upstream without time travel.

    <stagingDir>/<stream>/<epoch number>/manifest.json                    what the batch reads, see `manifest`
                                        /chunk-<split>-<attempt>.arrow    the snapshot rows of one split
                                        /changes-<n>-<cut>.arrow          changes too large for Spark's task messages
                                        /changes-<n>.arrow                those that cannot be made again
                                        /changes.json                     how many of these there are
                                                                          (`backfill.whole_rows`)

A reader writes its chunk while it passes the rows on, and the file gets its name before the last of them. So if a chunk
has no file, nobody has read it to its end, and where its batch is run again it may be read at a later state; the
manifest then says at which. File names carry the attempt, so that a reader left over from before a crash, or from a
checkpoint that was given up for a new one, cannot replace a chunk that was read after it. Such a reader finds that the
manifest no longer names its chunk, and fails: no chunk is passed on in two states.

batch_files     the files of one batch
folder          where they are
manifest        who reads what of a batch's snapshot rows
whole_files     files that appear under their names as a whole
failures        what file systems refuse, as errors of ours

Each imports only what stands after it.
"""

from __future__ import annotations

from collections.abc import Sequence

from backfill.errors import StagingError
from backfill.offset import Barrier
from backfill.plan import Piece
from backfill.staging.batch_files import BatchFiles
from backfill.staging.folder import Folder
from backfill.staging.manifest import Manifest
from backfill.vnode import merged
from backfill.wording import FRESH_START


class Staging:
    """A staging directory, or the part of it that belongs to one stream.

    Picklable; opens its file system when it is first used. Where the file system fails, every method raises a
    StagingError, a StagingUnreachableError, or a DriverError if this process may not have more; only a file system of
    Python's may raise what it likes. A file appears under its name as a whole or not at all, and replaces what was
    there.
    """

    def __init__(self, uri: str, stream: str = "") -> None:
        self._folder = Folder(uri, stream)

    def of_stream(self, stream: str) -> Staging:
        """The part of the directory that belongs to this stream."""
        return Staging(self._folder.uri, stream)

    def of_batch(self, number: int) -> BatchFiles:
        """What belongs to the batch that ends at the epoch of this number."""
        return BatchFiles(self._folder, number)

    def require_manifest(self, end: Barrier) -> Manifest:
        """What the batch that ends at `end`, which has been logged, reads; raises StagingError if that is not known."""
        if not end.has_manifest:
            return Manifest(())
        found = self.of_batch(end.epoch.number).require_manifest()
        if not found.is_of(end.epoch.position):
            raise self._planned_otherwise(end)
        return found

    def require_planned(self, end: Barrier, to_read: Sequence[Piece]) -> Manifest:
        """The same for a batch that is to be read; raises StagingError also if the offsets say that it reads others."""
        found = self.require_manifest(end)
        planned = any(piece.row_count for piece in to_read)
        if found.ranges != (merged(piece.range for piece in to_read) if planned else ()):
            raise self._planned_otherwise(end)
        return found

    def _planned_otherwise(self, end: Barrier) -> StagingError:
        return StagingError(
            f"stagingDir ({self._folder.uri}) holds another plan of the batch up to epoch {end.epoch.number} than the "
            "checkpoint: another query has planned a batch of that number since, as from a new checkpoint with "
            "onExistingState=resume, and the rows that this query read are gone. Go on with the checkpoint of that "
            "query; or, if the sink has no row of this batch, with a fresh checkpointLocation and "
            f"onExistingState=resume; or start over with {FRESH_START}"
        )

    def require_writable(self) -> None:
        """Does all that a batch does to files, and so raises where that fails; with an epoch that no batch has."""
        files = self.of_batch(0)
        files.keep_manifest(Manifest(()))
        files.manifest()
        files.forget()

    def forget_before(self, number: int) -> None:
        """Removes what belongs to epochs before this one; what somebody still writes to is left to the next time."""
        self._folder.remove_before(number)

    def forget_all(self) -> bool:
        """Removes everything. Returns whether there was anything."""
        return self._folder.remove()
