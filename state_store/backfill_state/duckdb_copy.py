"""Looking at a state file while its stream runs, without a lock that the stream would meet."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeAlias

from backfill_state.duckdb_store import DuckDBProgressStore
from backfill_state.errors import StateBusyError, StateDamagedError, StateUnwritableError

REST: Final = 0.02
"""Seconds for which a file must have been left alone before it is copied: the clock of file systems ticks that
coarsely, and a write in the same tick as the one before it would not be noticed."""

PATIENCE: Final = 10.0

_Stamp: TypeAlias = tuple[tuple[int, int, int] | None, ...]


@contextmanager
def looked_at(path: Path, *, patience: float = PATIENCE) -> Iterator[DuckDBProgressStore]:
    """A store with what the file at `path` holds now; what is done to it has no effect on that file.

    It is a copy of the file and its log, made while nobody wrote to them: what a crash at that moment would have left,
    which DuckDB recovers from. Raises FileNotFoundError where there is no file.
    """
    with tempfile.TemporaryDirectory(prefix="backfill-look-") as folder:
        copy = Path(folder) / path.name
        _copy(path, copy, time.monotonic() + patience)
        try:
            with DuckDBProgressStore(copy) as store:
                yield store
        except StateDamagedError as error:
            raise StateDamagedError(str(path), error.found) from error


def _copy(path: Path, copy: Path, give_up: float) -> None:
    files = (path, path.with_name(path.name + ".wal"))
    while True:
        before = _stamp(files)
        if before[0] is None:
            raise FileNotFoundError(path)
        if _at_rest(before):
            try:
                for file in files:
                    target = copy.with_name(file.name)
                    target.unlink(missing_ok=True)
                    if file.exists():
                        shutil.copyfile(file, target)
            except FileNotFoundError:
                pass  # The log was taken into the file and removed.
            except OSError as error:
                raise StateUnwritableError(str(error.filename), error.strerror or str(error)) from error
            if _stamp(files) == before:
                return
        if time.monotonic() > give_up:
            raise StateBusyError(str(path), None)
        time.sleep(REST / 2)


def _stamp(files: tuple[Path, ...]) -> _Stamp:
    return tuple(_stamp_of(file) for file in files)


def _stamp_of(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _at_rest(stamp: _Stamp) -> bool:
    latest = max(item[0] for item in stamp if item is not None)
    return abs(time.time_ns() - latest) >= REST * 1e9
