"""What DuckDB's errors mean to whoever runs the stream.

DuckDB tells a locked, a damaged and an unreachable file apart by its text alone: all of them are an `IOException` in
one release or another. A text that is not known here means nothing in particular, and its error stays as it is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import duckdb

from backfill_state.errors import (
    StateBusyError,
    StateDamagedError,
    StateMemoryError,
    StateNoMemoryLeftError,
    StateStoreError,
    StateUnwritableError,
    StateVersionError,
)

_INTERRUPTED: Final = "Query interrupted"
"""The text of the RuntimeError that DuckDB makes of a Ctrl-C amid one of its queries."""

_INTERRUPTED_GIVING: Final = "failed: KeyboardInterrupt"
"""A part of the text of the duckdb.Error that DuckDB makes of a Ctrl-C while it is given rows."""

_HOLDER: Final = re.compile(r"\(PID (\d+)\)")
_DUCKDB_VERSIONS: Final = re.compile(
    r"database file with version number (\d+), but we can only read versions? (?:between )?(\d+(?: and \d+)?)"
)
_LOCKED: Final = ("Could not set lock on file",)
_TAKEN_HERE: Final = (
    # This process has the file open, but not by this package, or not in the same way.
    "with a different configuration",
    "Unique file handle conflict",
    "Conflict on ",  # another store of this process is changing the same rows
    "write-write conflict",
)
_REPLAYING: Final = "Failure while replaying WAL"
_UNWRITABLE: Final = (
    "No space left on device",
    "Disk quota exceeded",
    "File too large",
    "Read-only file system",
    "Permission denied",
    "Could not write",
    "Cannot open file",
    "Is a directory",
    "Input/output error",
    "fsync failed",  # all that DuckDB says of an input/output error there
)
# Also in the text of an error that is no OutOfMemoryException, when a checkpoint fails.
_NO_MEMORY: Final = ("could not allocate block", "failed to allocate data", "failed to pin block")
_NONE_LEFT: Final = "(bad allocation)"
"""A part of the text of an OutOfMemoryException that is due to the system, and not to what DuckDB may take."""

_DAMAGED: Final = (
    "not a valid DuckDB database file",
    "Corrupt ",
    "Could not read enough bytes",
    _REPLAYING,
    "Failed to load metadata",
    # A table or a column is missing that every file of its version has.
    "Table with name ",
    "Referenced column ",
    "Referenced update column ",
    "does not have a column with name ",
)


class UnreadableError(Exception):
    """A file holds something else than its version says; `explaining` adds which file."""


def explained(error: duckdb.Error, path: str) -> StateStoreError | None:
    """The error that says what to do about this one; None if nothing better can be said."""
    text = str(error)
    versions = _DUCKDB_VERSIONS.search(text)
    if versions is not None:
        return StateVersionError(
            path,
            f"DuckDB storage version {versions[1]}",
            f"DuckDB storage versions {versions[2]} (duckdb {duckdb.__version__})",
        )
    if _has_any(text, _LOCKED):
        holder = _HOLDER.search(text)
        return StateBusyError(path, None if holder is None else int(holder[1]))
    # What a log does that does not belong to its file may look like a conflict.
    if _has_any(text, _TAKEN_HERE) and _REPLAYING not in text:
        return StateBusyError(path, os.getpid())
    if _NONE_LEFT in text:
        return StateNoMemoryLeftError(path, _first_line(text))
    if isinstance(error, duckdb.OutOfMemoryException) or _has_any(text, _NO_MEMORY):
        return StateMemoryError(path, _first_line(text))
    # Before damage: what DuckDB says of a disk must not cost anybody the file.
    if _has_any(text, _UNWRITABLE):
        return StateUnwritableError(path, _first_line(text))
    if isinstance(error, duckdb.SerializationException) or _has_any(text, _DAMAGED):
        return StateDamagedError(path, _first_line(text))
    return None


@contextmanager
def reaching(path: Path) -> Iterator[None]:
    """Raises a StateUnwritableError where the system refuses something that is done with the file."""
    try:
        yield
    except OSError as error:
        raise StateUnwritableError(str(path), error.strerror or str(error)) from error


@contextmanager
def explaining(path: Path) -> Iterator[None]:
    """Raises the errors of this package in place of DuckDB's, where they say more; a Ctrl-C as KeyboardInterrupt."""
    try:
        yield
    except duckdb.Error as error:
        if _INTERRUPTED_GIVING in str(error):
            raise KeyboardInterrupt from error
        known = explained(error, str(path))
        if known is None:
            raise
        raise known from error
    except UnreadableError as error:
        raise StateDamagedError(str(path), str(error)) from error
    except RuntimeError as error:
        if str(error) != _INTERRUPTED:
            raise
        raise KeyboardInterrupt from error


def _has_any(text: str, signs: tuple[str, ...]) -> bool:
    return any(sign in text for sign in signs)


def _first_line(text: str) -> str:
    return text.partition("\n")[0]
