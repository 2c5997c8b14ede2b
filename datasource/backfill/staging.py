"""Chunks kept so that a batch can be run again with the same rows, for an upstream without time travel.

    <stagingDir>/<stream>/<epoch number>/manifest.json          what the batch reads, see `Manifest`
                                        /chunk-<split>-<attempt>.arrow    the snapshot rows of one split
                                        /changes-<n>.arrow                changes too large for Spark's task messages
                                        /changes.json                     how many of these there are, where they
                                                                          cannot be made again (`backfill.upsert`)

A reader writes its chunk beside passing it on, and the file gets its name before the last rows are passed on. So a
chunk without a file cannot have been part of a finished batch, and may be read again at a later state; the manifest
then says at which. File names carry the attempt, so that a reader left over from before a crash cannot replace a
chunk that was read again after it.

Everything here works on a local path and on any file system that `pyarrow.fs` opens by URI.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
from pyarrow import fs, ipc

from backfill import stored
from backfill.errors import StagingError
from backfill.plan import Split
from backfill.vnode import Coverage, KeyRange

MANIFEST_VERSION: Final = 2
"""The newest there is. What version 1 can say is written as version 1."""

CHANGES_VERSION: Final = 1
_MANIFEST: Final = "manifest.json"
_CHANGES: Final = "changes.json"
# LZ4 costs little beside Spark's own handling of a row and keeps chunks about the size of the table's pages.
_WRITE: Final = ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True, slots=True)
class StagedSplit:
    """One reader's part of a batch. `position` is where it was read if not at the batch's own epoch.

    `given_up`: nobody reads it in this batch; its rows are for a later one.
    """

    split: Split
    attempt: int = 1
    position: str | None = None
    given_up: bool = False

    def again(self, position: str) -> StagedSplit:
        return replace(self, attempt=self.attempt + 1, position=position)


@dataclass(frozen=True, slots=True)
class Manifest:
    """How the snapshot rows of one batch are cut, fixed when it is first planned."""

    splits: tuple[StagedSplit, ...]

    @property
    def given_up(self) -> Coverage:
        """The key ranges that this batch was to read and did not."""
        return tuple(span for item in self.splits if item.given_up for span in item.split.ranges)

    @property
    def chunks(self) -> tuple[str, ...]:
        """The files of all that was read."""
        return tuple(self.chunk(at) for at, item in enumerate(self.splits) if not item.given_up)

    def chunk(self, index: int) -> str:
        return f"chunk-{index}-{self.splits[index].attempt}.arrow"

    def to_json(self) -> dict[str, Any]:
        splits = [
            {
                "ranges": [{"after": item.after, "upto": item.upto} for item in staged.split.ranges],
                "rows": staged.split.row_count,
                "attempt": staged.attempt,
                "position": staged.position,
                **({"given_up": True} if staged.given_up else {}),
            }
            for staged in self.splits
        ]
        return {"version": 2 if self.given_up else 1, "splits": splits}

    def to_text(self) -> str:
        return json.dumps(self.to_json())

    @classmethod
    def from_text(cls, text: str | bytes) -> Manifest:
        """The manifest; StagingError where it is of a newer version or damaged."""
        try:
            value = json.loads(text)
            newer = value["version"] > MANIFEST_VERSION
            found = None if newer else cls._from_json(value)
        except stored.UNREADABLE as error:
            raise StagingError(
                f"the staging directory holds a damaged manifest ({type(error).__name__}: {error}); start over with a "
                "fresh checkpointLocation and stateDir"
            ) from error
        if found is None:
            raise StagingError(
                f"the staging directory holds a manifest of version {value['version']}, and this release reads up to "
                f"{MANIFEST_VERSION}; install the release that wrote it, or a newer one"
            )
        return found

    @classmethod
    def _from_json(cls, value: dict[str, Any]) -> Manifest:
        splits = tuple(
            StagedSplit(
                Split(
                    tuple(KeyRange(stored.end(span["after"]), stored.end(span["upto"])) for span in item["ranges"]),
                    stored.whole(item["rows"]),
                ),
                stored.whole(item["attempt"]),
                None if item["position"] is None else stored.text(item["position"]),
                "given_up" in item,
            )
            for item in value["splits"]
        )
        found = cls(splits)
        stored.require_canonical(found.to_json(), value)
        return found


class Staging:
    """A staging directory, or the part of it that belongs to one stream.

    Picklable; opens its file system when it is first used.
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
            try:
                self._opened = fs.FileSystem.from_uri(self._uri)
            except (pa.ArrowInvalid, OSError) as error:
                raise StagingError(f"stagingDir cannot be opened: {error}") from error
        filesystem, root = self._opened
        return filesystem, "/".join(part for part in [root.rstrip("/"), self._stream, *parts] if part)

    def exists(self, epoch: int, name: str) -> bool:
        filesystem, path = self._path(str(epoch), name)
        return bool(filesystem.get_file_info(path).type == fs.FileType.File)

    def manifest(self, epoch: int) -> Manifest | None:
        """What the batch that ends at this epoch reads, if it has been planned before."""
        if not self.exists(epoch, _MANIFEST):
            return None
        filesystem, path = self._path(str(epoch), _MANIFEST)
        with filesystem.open_input_stream(path) as stream:
            return Manifest.from_text(stream.read())

    def require_shared(self, epoch: int) -> None:
        """For a reader: StagingError unless what the driver wrote for this batch is here too."""
        if not self.exists(epoch, _MANIFEST):
            raise StagingError(
                f"this executor does not find in stagingDir ({self._uri}) what the driver wrote there; set stagingDir "
                "to a path or URI that the driver and all executors share"
            )

    def keep_manifest(self, epoch: int, manifest: Manifest) -> None:
        self._replace(epoch, _MANIFEST, manifest.to_text().encode())

    def keep_changes(self, epoch: int, files: int) -> None:
        """Says that the changes of this epoch are complete, in this many files."""
        self._replace(epoch, _CHANGES, json.dumps({"version": CHANGES_VERSION, "files": files}).encode())

    def changes(self, epoch: int) -> int:
        """How many files `keep_changes` was told of."""
        filesystem, path = self._path(str(epoch), _CHANGES)
        try:
            with filesystem.open_input_stream(path) as stream:
                value = json.loads(stream.read())
            if value["version"] == CHANGES_VERSION:
                return stored.whole(value["files"])
            found = f"is of version {value['version']}, and this release reads {CHANGES_VERSION}"
        except (OSError, *stored.UNREADABLE) as error:
            found = f"cannot be read ({type(error).__name__}: {error})"
        raise StagingError(
            f"the staged changes of epoch {epoch} cannot be made again, and the list of their files {found}. Restore "
            "stagingDir, or start over with a fresh checkpointLocation and onExistingState=restart"
        )

    def _folder(self, epoch: int) -> tuple[fs.FileSystem, str]:
        """The folder of this epoch, made if it is not there."""
        filesystem, folder = self._path(str(epoch))
        with _writing():
            filesystem.create_dir(folder, recursive=True)
        return filesystem, folder

    def _replace(self, epoch: int, name: str, content: bytes) -> None:
        filesystem, folder = self._folder(epoch)
        part = f"{folder}/.{name}.{uuid.uuid4().hex}"
        with filesystem.open_output_stream(part) as sink:
            sink.write(content)
        filesystem.move(part, f"{folder}/{name}")

    def write_through(
        self, epoch: int, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
    ) -> Generator[pa.RecordBatch, None, None]:
        """Passes the batches on and keeps them; the file has its name before the last batch is passed on."""
        filesystem, folder = self._folder(epoch)
        part = f"{folder}/.{name}.{uuid.uuid4().hex}"
        held: pa.RecordBatch | None = None
        try:
            # Unlike Arrow's stream format its file format has an end, so that a file that was cut short is noticed.
            with filesystem.open_output_stream(part) as sink, ipc.new_file(sink, schema, options=_WRITE) as writer:
                for batch in batches:
                    with _writing():
                        writer.write_batch(batch)
                    if held is not None:
                        yield held
                    held = batch
            filesystem.move(part, f"{folder}/{name}")
        except BaseException:
            _delete_quietly(filesystem, part)
            raise
        if held is not None:
            yield held

    def write(self, epoch: int, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        for _ in self.write_through(epoch, name, schema, batches):
            pass

    def read(self, epoch: int, name: str) -> Iterator[pa.RecordBatch]:
        """The batches of a file that `exists`."""
        filesystem, path = self._path(str(epoch), name)
        try:
            with filesystem.open_input_file(path) as source, ipc.open_file(source) as reader:
                for number in range(reader.num_record_batches):
                    yield reader.get_batch(number)
        except (OSError, pa.ArrowException) as error:
            raise StagingError(
                f"the staged file {name} of epoch {epoch} cannot be read ({error}); if stagingDir lost files that a "
                "batch still needs, start over with a fresh checkpointLocation and stateDir"
            ) from error

    def forget(self, epoch: int) -> None:
        """Removes what belongs to this epoch."""
        self._delete_folder(*self._path(str(epoch)))

    def forget_before(self, epoch: int) -> None:
        """Removes what belongs to epochs before this one."""
        filesystem, root = self._path()
        for info in filesystem.get_file_info(fs.FileSelector(root, allow_not_found=True)):
            if info.base_name.isdigit() and int(info.base_name) < epoch:
                filesystem.delete_dir(info.path)

    def forget_all(self) -> None:
        self._delete_folder(*self._path())

    @staticmethod
    def _delete_folder(filesystem: fs.FileSystem, path: str) -> None:
        if filesystem.get_file_info(path).type == fs.FileType.Directory:
            filesystem.delete_dir(path)


@contextmanager
def _writing() -> Iterator[None]:
    """A full disk and the like, as our error."""
    try:
        yield
    except OSError as error:
        raise StagingError(f"stagingDir cannot be written: {error}") from error


def _delete_quietly(filesystem: fs.FileSystem, path: str) -> None:
    """Removes a file on the way out of an error; that error matters more than a file left behind."""
    try:
        filesystem.delete_file(path)
    except OSError:
        return
