"""Looking at a state file while its stream runs, without a lock that the stream would meet."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias

from backfill_state.duckdb_errors import reaching
from backfill_state.duckdb_store import DuckDBProgressStore
from backfill_state.errors import StateBusyError, StateFileError, StateStoreError, StateUnwritableError

REST: Final = 0.02
"""Seconds for which a file must have been left alone before it is copied: the clock of file systems ticks that
coarsely, and a write in the same tick as the one before it would not be noticed."""

PATIENCE: Final = 10.0

COPIED_AT_ONCE: Final = 1 << 20

_Stamp: TypeAlias = tuple[tuple[int, int, int] | None, ...]


@contextmanager
def looked_at(path: Path) -> Iterator[DuckDBProgressStore]:
    """A store with what the file at `path` holds now; what is done to it has no effect on that file.

    It is a copy of the file and its log, made while nobody wrote to them: what a crash at that moment would have left,
    which DuckDB recovers from. Raises FileNotFoundError where there is no file.
    """
    with _temporary_folder(path) as folder:
        copy = Path(folder) / path.name
        _copy(path, copy, time.monotonic() + PATIENCE)
        try:
            with DuckDBProgressStore(copy) as store:
                yield store
        except StateUnwritableError as error:
            raise _no_copy(path, error.found) from error
        except StateStoreError as error:
            raise _of_file(path, copy, error) from error


def _of_file(path: Path, copy: Path, error: StateStoreError) -> StateStoreError:
    """The error about the copy as one about the file itself: nobody finds the copy any more."""
    facts = (fact.replace(str(copy), str(path)) if isinstance(fact, str) else fact for fact in error.args)
    return type(error)(*facts)


def _temporary_folder(path: Path) -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix="backfill-look-")
    except OSError as error:
        raise _no_copy(path, error.strerror or str(error)) from error


def _no_copy(path: Path, found: str) -> StateFileError:
    return StateFileError(
        str(path),
        f"a copy of it, to look at, cannot be kept in the temporary folder ({found}). Make room there, or name another "
        "folder in the environment variable TMPDIR",
    )


def _copy(path: Path, copy: Path, give_up: float) -> None:
    files = (path, path.with_name(path.name + ".wal"))
    while True:
        before = _stamp(files)
        if before[0] is None:
            raise FileNotFoundError(path)
        if _at_rest(before):
            for file in files:
                _copy_file(file, copy.with_name(file.name))
            if _stamp(files) == before:
                return
        if time.monotonic() > give_up:
            raise StateBusyError(str(path), None)
        time.sleep(REST / 2)


def _copy_file(file: Path, target: Path) -> None:
    """Makes `target` a copy of `file`; removes it where there is no such file."""
    target.unlink(missing_ok=True)
    with reaching(file):
        try:
            source = file.open("rb")
        except FileNotFoundError:
            return  # The log was taken into the file and removed.
    with source:
        try:
            with target.open("wb") as sink:
                while read := _read(source, file):
                    sink.write(read)
        except OSError as error:
            raise _no_copy(file, error.strerror or str(error)) from error


def _read(source: BinaryIO, file: Path) -> bytes:
    with reaching(file):
        return source.read(COPIED_AT_ONCE)


def _stamp(files: tuple[Path, ...]) -> _Stamp:
    return tuple(_stamp_of(file) for file in files)


def _stamp_of(file: Path) -> tuple[int, int, int] | None:
    with reaching(file), suppress(FileNotFoundError, NotADirectoryError):
        found = file.stat()
        return found.st_mtime_ns, found.st_size, found.st_ino
    return None


def _at_rest(stamp: _Stamp) -> bool:
    latest = max(item[0] for item in stamp if item is not None)
    return abs(time.time_ns() - latest) >= REST * 1e9
