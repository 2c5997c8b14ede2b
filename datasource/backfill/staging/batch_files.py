"""The files of one batch, under the number of the epoch at which it ends."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyarrow import fs, ipc

from backfill import stored
from backfill.errors import StagingError, StateBusyError
from backfill.plan import Split
from backfill.scarcity import scarcity
from backfill.staging.failures import being, failed, is_of_store, tried_again
from backfill.staging.folder import Folder
from backfill.staging.manifest import Manifest
from backfill.staging.whole_files import content_of, new_file, put
from backfill.wording import FRESH_START

CHANGES_VERSION: Final = 1
_MANIFEST: Final = "manifest.json"
_CHANGES: Final = "changes.json"
_FIND: Final = (
    "set stagingDir to a path or URI that the driver and all executors share; and read the DataFrame of foreachBatch "
    "before the function returns, because the files of a batch are removed after it"
)


@dataclass(frozen=True, slots=True)
class BatchFiles:
    """The staged files of the batch that ends at the epoch of this number. Picklable; for errors see `Staging`."""

    folder: Folder
    number: int

    def exists(self, name: str) -> bool:
        filesystem, path = self._path(name)
        with being("read"):
            return bool(filesystem.get_file_info(path).type == fs.FileType.File)

    def manifest(self) -> Manifest | None:
        """What the batch that ends at this epoch reads; None where it has not been planned."""
        if not self.exists(_MANIFEST):
            return None
        filesystem, path = self._path(_MANIFEST)
        with being("read"):
            content = content_of(filesystem, path)
        return Manifest.from_text(content)

    def require_manifest(self) -> Manifest:
        """The same for a batch that has been logged; raises StagingError where there is no manifest."""
        found = self.manifest()
        if found is None:
            raise StagingError(
                f"stagingDir ({self.folder.uri}) does not have the files of the batch up to epoch {self.number}: it "
                "is not the stagingDir of the run before, or was emptied. Name the former one, or restore it; or "
                f"start over with {FRESH_START}"
            )
        return found

    def require_shared(self) -> None:
        """For a reader: raises StagingError unless what the driver wrote for this batch is here too."""
        if not self.exists(_MANIFEST):
            raise StagingError(
                f"this executor does not find the files that the driver wrote to stagingDir ({self.folder.uri}) for "
                f"the batch up to epoch {self.number}; {_FIND}"
            )

    def require_still_planned(self, chunk: str, split: Split) -> None:
        """For a reader that has staged this chunk: raises StateBusyError where its split is no longer read so.

        A driver may be taken for dead although its readers go on, as where only the process died in which it plans. The
        next driver, which did not find the chunk, has the split read at a later state and goes on from there; so the
        sink must not get these rows. Once its plan can be seen here, that driver looks for the chunk again: so one of
        the two notices.
        """
        found = self.manifest()
        if found is None or found.reads_otherwise(chunk, split):
            raise StateBusyError(
                f"the batch up to epoch {self.number} was planned again or ended while its rows were read here: "
                "another driver has taken over the query. End this driver; the other one has all rows"
            )

    def keep_manifest(self, manifest: Manifest) -> None:
        self._put(_MANIFEST, manifest.to_text().encode())

    def keep_changes(self, files: int) -> None:
        """Notes that the changes of this epoch are complete, in this many files."""
        self._put(_CHANGES, json.dumps({"version": CHANGES_VERSION, "files": files}).encode())

    def change_files(self) -> int:
        """How many files `keep_changes` has noted."""
        filesystem, path = self._path(_CHANGES)
        try:
            value = json.loads(content_of(filesystem, path))
            if value["version"] == CHANGES_VERSION:
                return stored.whole(value["files"])
            found = f"is of version {value['version']}, and this release reads {CHANGES_VERSION}"
        except (OSError, *stored.UNREADABLE) as error:
            if scarcity(error) or is_of_store(error):
                raise failed("read", error) from error
            found = f"cannot be read ({type(error).__name__}: {error})"
        raise StagingError(
            f"the list of the staged changes of epoch {self.number} {found}, and it cannot be made again. Name the "
            f"stagingDir of the run before, or restore it; or start over with {FRESH_START}"
        )

    def _put(self, name: str, content: bytes) -> None:
        put(*self._path(name), content)

    def write_through(
        self, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch], *, lasts: bool = True
    ) -> Generator[pa.RecordBatch, None, None]:
        """Passes the batches on and writes them to a file, which has its name before the last batch is passed on, and
        where it `lasts` survives a loss of power.
        """
        filesystem, path = self._path(name)
        held: pa.RecordBatch | None = None
        with new_file(filesystem, path, schema, lasts=lasts) as writer:
            for batch in batches:
                with being("written"):
                    writer.write_batch(batch)
                if held is not None:
                    yield held
                held = batch
        if held is not None:
            yield held

    def write(self, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch], *, lasts: bool = True) -> None:
        for _ in self.write_through(name, schema, batches, lasts=lasts):
            pass

    def read(self, name: str) -> Iterator[pa.RecordBatch]:
        """The batches of a file that `exists`."""
        with self._reader(name) as reader:
            for at in range(reader.num_record_batches):
                yield reader.get_batch(at)

    def schema(self, name: str) -> pa.Schema:
        """The columns of a file that `exists`."""
        with self._reader(name) as reader:
            return reader.schema

    @contextmanager
    def _reader(self, name: str) -> Iterator[ipc.RecordBatchFileReader]:
        filesystem, path = self._path(name)
        try:
            with (
                filesystem.open_input_file(path) as source,
                tried_again(lambda: ipc.open_file(source)) as reader,
            ):
                yield reader
        except FileNotFoundError as error:
            raise StagingError(
                f"the staged file {name} of epoch {self.number} is not in stagingDir ({self.folder.uri}), as this "
                f"process sees it; {_FIND}. If it is shared, the file was lost: start the query again; if that does "
                f"not help, start over with {FRESH_START}"
            ) from error
        except (OSError, pa.ArrowException) as error:
            # A damaged file may ask for memory of any size, and then that is not what is lacking.
            if is_of_store(error) or (scarcity(error) and not isinstance(error, MemoryError)):
                raise failed("read", error) from error
            raise StagingError(
                f"the staged file {name} of epoch {self.number} cannot be read ({error}); if stagingDir lost files "
                f"that a batch still needs, start over with {FRESH_START}"
            ) from error

    def forget(self) -> None:
        """Removes all files of the batch."""
        self.folder.remove(str(self.number))

    def _path(self, name: str) -> tuple[fs.FileSystem, str]:
        return self.folder.path(str(self.number), name)
