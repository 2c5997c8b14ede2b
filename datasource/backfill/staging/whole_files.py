"""Files that appear under their names as a whole, on any file system that `pyarrow.fs` opens; and what it refuses.

On a local file system they outlast a loss of power as well: each is synced before it gets its name, and then that is.

A file is written under another name first, also to an object store, where it appears only when it is closed: Arrow's
Python has no way out of an output but to close it, also after an error (apache/arrow issue 40502), and a file that was
cut short would appear under its name. What that costs on S3: moving a file there is one copy, of at most 5 GiB.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

import pyarrow as pa
from pyarrow import fs, ipc

from backfill.durable import make_folder, sync_file, sync_names
from backfill.errors import BackfillError, StagingError, StagingUnreachableError
from backfill.scarcity import scarcity
from backfill.wording import unusable

# LZ4 costs little beside Spark's own handling of a row and keeps chunks about the size of the table's pages.
_WRITE: Final = ipc.IpcWriteOptions(compression="lz4")

_MAY_PASS: Final = re.compile(
    r"AWS Error (NETWORK_CONNECTION|SLOW_DOWN|THROTTLING|SERVICE_UNAVAILABLE|INTERNAL_FAILURE|REQUEST_TIMEOUT|"
    r"NO_SUCH_UPLOAD|"  # It was completed and the answer lost, or a lifecycle rule has ended it.
    r"UNKNOWN \(HTTP status (429|5\d\d)\))|Azure Error: \[\w*\] (429 |5\d\d |Fail to get a new connection)|"
    r"google::cloud::Status\((UNAVAILABLE|RESOURCE_EXHAUSTED|DEADLINE_EXCEEDED|INTERNAL|ABORTED)|"
    r"[Pp]lease (try again|reduce your request rate)"  # All that Arrow tells of an object that S3 did not delete.
)
"""Arrow's texts for a store that may answer later. Arrow itself has tried again before: on S3 for some six seconds."""

_DENIED: Final = re.compile(
    r"AWS Error (ACCESS_DENIED|INVALID_ACCESS_KEY_ID|INVALID_CLIENT_TOKEN_ID|SIGNATURE_DOES_NOT_MATCH|"
    r"REQUEST_TIME_TOO_SKEWED|REQUEST_EXPIRED|UNKNOWN \(HTTP status 40[013]\).*(Token|No response body))|"
    r"Azure Error: \[\w*\] 40[13] |google::cloud::Status\((PERMISSION_DENIED|UNAUTHENTICATED)"
)
"""The same for one that does not take the credentials, or not for this. To a HEAD S3 says no reason."""

_NO_ROOM_FOR_ANSWER: Final = "Failed to flush response stream"
_PAUSES: Final = (0.1, 0.4, 1.5, 4.0)

_T = TypeVar("_T")


@contextmanager
def being(done: str) -> Iterator[None]:
    """Raises what the file system refuses (a full disk, a store without rights) as our error."""
    try:
        yield
    except (OSError, ValueError, pa.ArrowException) as error:  # ValueError: a URI whose %ff is no UTF-8
        raise failed(done, error) from error


def may_pass(error: Exception) -> bool:
    """Whether the store may answer later."""
    return _MAY_PASS.search(str(error)) is not None


def is_denied(error: Exception) -> bool:
    """Whether the file system does not let us at the file, which says nothing of the file."""
    return isinstance(error, PermissionError) or _DENIED.search(str(error)) is not None


def failed(done: str, error: Exception) -> BackfillError:
    lacking = scarcity(error)
    if lacking is not None:
        return lacking
    if may_pass(error):
        return StagingUnreachableError(
            f"stagingDir cannot be {done} for now: {error}. When its store answers again, start the query again"
        )
    if _DENIED.search(str(error)):
        return StagingError(
            f"stagingDir cannot be {done}: {error}. Its store refuses the access: see whether the credentials in the "
            "environment of the driver and of the executors are right for it, and not expired, and the clock as well; "
            "then start the query again"
        )
    return StagingError(unusable("stagingDir", done, error))


def tried_again(read: Callable[[], _T]) -> _T:
    """What a read of a few bytes gives. Arrow does not try it again on S3, as it does all else: the text of a refusal,
    as for being asked too much, has no room where these bytes should go, and that is the error then.
    """
    for pause in _PAUSES:
        try:
            return read()
        except OSError as error:
            if _NO_ROOM_FOR_ANSWER not in str(error):
                raise
        time.sleep(pause)
    return read()


def content(filesystem: fs.FileSystem, path: str) -> bytes:
    """What is in a small file."""

    def read() -> bytes:
        with filesystem.open_input_stream(path) as stream:
            found: bytes = stream.read()
            return found

    return tried_again(read)


def put(filesystem: fs.FileSystem, path: str, content: bytes) -> None:
    """Writes a file, in place of one that is there."""
    with (
        _named_when_whole(filesystem, path, lasts=True) as part,
        being("written"),
        _created(filesystem, part) as sink,
    ):
        sink.write(content)


@contextmanager
def new_file(
    filesystem: fs.FileSystem, path: str, schema: pa.Schema, *, lasts: bool
) -> Iterator[ipc.RecordBatchFileWriter]:
    """The same for record batches, which are written in the block. Not `lasts`: they are made anew after a crash, and
    syncing them would be for nothing.
    """
    with _named_when_whole(filesystem, path, lasts=lasts) as part, _writer(filesystem, part, schema) as writer:
        yield writer


@contextmanager
def _named_when_whole(filesystem: fs.FileSystem, path: str, *, lasts: bool) -> Iterator[str]:
    """The name under which to write a file. When the block has ended the file gets its own name, or is removed after an
    error.
    """
    folder, _, name = path.rpartition("/")
    part = f"{folder}/.{name}.{uuid.uuid4().hex}"
    try:
        yield part
        synced = lasts and _is_local(filesystem)
        with being("written"):
            if synced:
                sync_file(Path(part))
            _give_name(filesystem, part, path)
            if synced:
                sync_names(Path(folder))
    except BaseException:
        _delete_quietly(filesystem, part)
        raise


def _is_local(filesystem: fs.FileSystem) -> bool:
    return bool(filesystem.type_name == "local")


def _give_name(filesystem: fs.FileSystem, part: str, path: str) -> None:
    try:
        filesystem.move(part, path)
    except pa.ArrowNotImplementedError:  # Azure without hierarchical namespaces, apache/arrow issue 40405
        filesystem.copy_file(part, path)
        filesystem.delete_file(part)


def _created(filesystem: fs.FileSystem, path: str) -> pa.NativeFile:
    """A new file; its folder is made where it is missing.

    It is not made before it is missed: an object store has no folders, and Arrow would write an object for each folder
    above as well, for which the role that may write to stagingDir need not have the right. But a file system of
    Python's may notice a missing folder only when the file is closed, with an error of its own.
    """
    folder, _, _ = path.rpartition("/")
    if filesystem.type_name.startswith("py::"):
        filesystem.create_dir(folder, recursive=True)
    try:
        return filesystem.open_output_stream(path)
    except FileNotFoundError:
        if _is_local(filesystem):
            make_folder(Path(folder))
        else:
            filesystem.create_dir(folder, recursive=True)
        return filesystem.open_output_stream(path)


@contextmanager
def _writer(filesystem: fs.FileSystem, path: str, schema: pa.Schema) -> Iterator[ipc.RecordBatchFileWriter]:
    """A file for record batches, complete when the block has ended.

    Unlike Arrow's stream format its file format has an end, so that a file that was cut short is noticed.
    """
    with ExitStack() as parts:
        try:
            with being("written"):
                sink = parts.enter_context(_created(filesystem, path))
                writer = parts.enter_context(ipc.new_file(sink, schema, options=_WRITE))
            yield writer
        except BaseException:
            # Closing writes what was held back and the file's end, for which a full disk has no room either.
            with suppress(OSError, pa.ArrowException):
                parts.close()
            raise
        with being("written"):
            parts.close()


def _delete_quietly(filesystem: fs.FileSystem, path: str) -> None:
    """Removes a file on the way out of an error; that error matters more than a file left behind."""
    with suppress(OSError, pa.ArrowException):
        filesystem.delete_file(path)
