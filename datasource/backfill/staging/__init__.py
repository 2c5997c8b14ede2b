"""Chunks kept so that a batch can be run again with the same rows, for an upstream without time travel.

    <stagingDir>/<stream>/<epoch number>/manifest.json                    what the batch reads, see `manifest`
                                        /chunk-<split>-<attempt>.arrow    the snapshot rows of one split
                                        /changes-<n>.arrow                changes too large for Spark's task messages
                                        /changes.json                     how many of these there are, where they
                                                                          cannot be made again (`backfill.whole_rows`)

A reader writes its chunk beside passing it on, and the file gets its name before the last rows are passed on. So a
chunk without a file has been read to its end by nobody, and where its batch is run again it may be read at a later
state; the manifest then says at which. File names carry the attempt, so that a reader left over from before a crash,
or from a checkpoint that was given up for a new one, cannot replace a chunk that was read after it.

manifest        who reads what of a batch's snapshot rows
whole_files     files that appear under their names as a whole
"""

from __future__ import annotations

import errno
import json
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
from pyarrow import fs, ipc

from backfill import stored
from backfill.errors import StagingError
from backfill.offset import Barrier
from backfill.staging.manifest import Manifest
from backfill.staging.whole_files import being, failed, may_pass, new_file, put
from backfill.wording import FRESH_START

CHANGES_VERSION: Final = 1
_MANIFEST: Final = "manifest.json"
_CHANGES: Final = "changes.json"
_WRITTEN_MEANWHILE: Final = (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST)
"""How removing a folder fails where somebody puts files there or takes them away at that moment."""

_TRIES: Final = 3
_SHARE: Final = "set stagingDir to a path or URI that the driver and all executors share"


class Staging:
    """A staging directory, or the part of it that belongs to one stream.

    Picklable; opens its file system when it is first used. Whatever that fails at is a StagingError, of every method,
    or a StagingUnreachableError; only a file system of Python's may raise what it likes. A file appears under its name
    as a whole or not at all, and replaces what was there.
    """

    def __init__(self, uri: str, stream: str = "") -> None:
        self._uri = uri
        self._stream = stream
        self._opened: tuple[fs.FileSystem, str] | None = None

    def __reduce__(self) -> tuple[type[Staging], tuple[str, str]]:
        return Staging, (self._uri, self._stream)

    def __repr__(self) -> str:
        return f"Staging({self._uri!r}, {self._stream!r})"

    def of_stream(self, stream: str) -> Staging:
        """The part of the directory that belongs to this stream."""
        return Staging(self._uri, stream)

    def _path(self, *parts: str) -> tuple[fs.FileSystem, str]:
        if self._opened is None:
            with being("opened"):
                self._opened = fs.FileSystem.from_uri(self._uri)
        filesystem, root = self._opened
        begin = f"{root.rstrip('/')}/" if root else ""  # The root of a file system is a slash and nothing else.
        return filesystem, begin + "/".join(part for part in [self._stream, *parts] if part)

    def exists(self, number: int, name: str) -> bool:
        filesystem, path = self._path(str(number), name)
        with being("read"):
            return bool(filesystem.get_file_info(path).type == fs.FileType.File)

    def manifest(self, number: int) -> Manifest | None:
        """What the batch that ends at this epoch reads, if it has been planned before."""
        if not self.exists(number, _MANIFEST):
            return None
        filesystem, path = self._path(str(number), _MANIFEST)
        with being("read"), filesystem.open_input_stream(path) as stream:
            content = stream.read()
        return Manifest.from_text(content)

    def require_manifest(self, end: Barrier) -> Manifest:
        """What the batch that ends at `end`, which has been logged, reads; StagingError where that is not known."""
        number = end.epoch.number
        found = self.manifest(number) if end.has_manifest else Manifest(())
        if found is None:
            raise StagingError(
                f"stagingDir ({self._uri}) does not hold what the batch up to epoch {number} reads: it is not the "
                "stagingDir of the run before, or was emptied. Name that one, or restore it; or start over with "
                f"{FRESH_START}"
            )
        return found

    def require_writable(self) -> None:
        """Does all that a batch does to files, with an epoch that no batch has."""
        self.keep_manifest(0, Manifest(()))
        self.manifest(0)
        self.forget(0)

    def require_shared(self, number: int) -> None:
        """For a reader: StagingError unless what the driver wrote for this batch is here too."""
        if not self.exists(number, _MANIFEST):
            raise StagingError(
                f"this executor does not find in stagingDir ({self._uri}) what the driver wrote there; {_SHARE}"
            )

    def keep_manifest(self, number: int, manifest: Manifest) -> None:
        self._put(number, _MANIFEST, manifest.to_text().encode())

    def keep_changes(self, number: int, files: int) -> None:
        """Says that the changes of this epoch are complete, in this many files."""
        self._put(number, _CHANGES, json.dumps({"version": CHANGES_VERSION, "files": files}).encode())

    def change_files(self, number: int) -> int:
        """How many files `keep_changes` was told of."""
        filesystem, path = self._path(str(number), _CHANGES)
        try:
            with filesystem.open_input_stream(path) as stream:
                value = json.loads(stream.read())
            if value["version"] == CHANGES_VERSION:
                return stored.whole(value["files"])
            found = f"is of version {value['version']}, and this release reads {CHANGES_VERSION}"
        except (OSError, *stored.UNREADABLE) as error:
            if may_pass(error):
                raise failed("read", error) from error
            found = f"cannot be read ({type(error).__name__}: {error})"
        raise StagingError(
            f"the staged changes of epoch {number} cannot be made again, and the list of their files {found}. Restore "
            f"stagingDir, or start over with {FRESH_START}"
        )

    def _put(self, number: int, name: str, content: bytes) -> None:
        put(*self._path(str(number), name), content)

    def write_through(
        self, number: int, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
    ) -> Generator[pa.RecordBatch, None, None]:
        """Passes the batches on and keeps them; the file has its name before the last batch is passed on."""
        filesystem, path = self._path(str(number), name)
        held: pa.RecordBatch | None = None
        with new_file(filesystem, path, schema) as writer:
            for batch in batches:
                with being("written"):
                    writer.write_batch(batch)
                if held is not None:
                    yield held
                held = batch
        if held is not None:
            yield held

    def write(self, number: int, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        for _ in self.write_through(number, name, schema, batches):
            pass

    def read(self, number: int, name: str) -> Iterator[pa.RecordBatch]:
        """The batches of a file that `exists`."""
        with self._reader(number, name) as reader:
            for at in range(reader.num_record_batches):
                yield reader.get_batch(at)

    def schema(self, number: int, name: str) -> pa.Schema:
        """The columns of a file that `exists`."""
        with self._reader(number, name) as reader:
            return reader.schema

    @contextmanager
    def _reader(self, number: int, name: str) -> Iterator[ipc.RecordBatchFileReader]:
        filesystem, path = self._path(str(number), name)
        try:
            with filesystem.open_input_file(path) as source, ipc.open_file(source) as reader:
                yield reader
        except FileNotFoundError as error:
            raise StagingError(
                f"the staged file {name} of epoch {number} is not in stagingDir ({self._uri}) as this process sees it; "
                f"{_SHARE}. Where they do share it, the file was lost: restart the query; if that does not help, "
                f"start over with {FRESH_START}"
            ) from error
        except (OSError, pa.ArrowException) as error:
            if may_pass(error):
                raise failed("read", error) from error
            raise StagingError(
                f"the staged file {name} of epoch {number} cannot be read ({error}); if stagingDir lost files that a "
                f"batch still needs, start over with {FRESH_START}"
            ) from error

    def forget(self, number: int) -> None:
        """Removes what belongs to this epoch."""
        self._delete_folder(*self._path(str(number)))

    def forget_before(self, number: int) -> None:
        """Removes what belongs to epochs before this one; what somebody still writes to is left to the next time."""
        filesystem, root = self._path()
        with being("written"):
            for info in filesystem.get_file_info(fs.FileSelector(root, allow_not_found=True)):
                if info.base_name.isdigit() and int(info.base_name) < number:
                    try:
                        _delete(filesystem, info.path)
                    except OSError as error:
                        if error.errno not in _WRITTEN_MEANWHILE:
                            raise

    def forget_all(self) -> bool:
        """Removes everything. Returns whether there was anything."""
        return self._delete_folder(*self._path())

    @staticmethod
    def _delete_folder(filesystem: fs.FileSystem, path: str) -> bool:
        with being("written"):
            there = _is_folder(filesystem, path)
            if there:
                _delete(filesystem, path)
            return there


def _delete(filesystem: fs.FileSystem, path: str) -> None:
    """Removes a folder into which a reader left over from before may put a file at this moment."""
    for further in reversed(range(_TRIES)):
        try:
            filesystem.delete_dir(path)
        except OSError as error:
            if not further or error.errno not in _WRITTEN_MEANWHILE:
                raise
        if not _is_folder(filesystem, path):
            return


def _is_folder(filesystem: fs.FileSystem, path: str) -> bool:
    return bool(filesystem.get_file_info(path).type == fs.FileType.Directory)
