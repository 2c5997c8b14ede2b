"""Files that appear under their names as a whole, on any file system that `pyarrow.fs` opens.

On a local file system they survive a loss of power as well: each is synced before it gets its name, then the name is.

A file is written under another name first, also to an object store, where it appears only when it is closed: Arrow's
Python has no way out of an output but to close it, also after an error (apache/arrow issue 40502), and a file that was
cut short would appear under its name. What that costs on S3: moving a file there is one copy, of at most 5 GiB.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import fs, ipc

from backfill.durable import make_folder, sync_file, sync_names
from backfill.staging.failures import being, tried_again

# LZ4 costs little beside Spark's own handling of a row and keeps chunks about the size of the table's pages.
_WRITE: Final = ipc.IpcWriteOptions(compression="lz4")


def content_of(filesystem: fs.FileSystem, path: str) -> bytes:
    """The content of a small file."""

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
    """The same for record batches, which are written in the block. If the file need not last, because it is made anew
    after a crash, it is not synced.
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

    The folder is not made before it is missed: an object store has no folders, and Arrow would write an object for each
    folder above as well, for which the role that may write to stagingDir need not have the right. But a file system of
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
