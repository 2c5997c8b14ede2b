"""Opening the file of a `DuckDBProgressStore`, and making it if there is none."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

import duckdb

from backfill_state.duckdb_errors import explaining
from backfill_state.errors import StateUnwritableError
from backfill_state.layout import CREATE_FORMAT, CREATE_STREAM
from backfill_state.migrations import FORMAT_VERSION, migrate

_CONFIG: Final[dict[str, str | bool | int | float | list[str]]] = {
    # The store runs beside the engine and holds a few hundred rows.
    "threads": 1,
    "memory_limit": "64MB",
    # Blocks of DuckDB's usual 256 kB would make the file of a few hundred rows a megabyte.
    "default_block_size": 16384,
    # The oldest DuckDB we run with can open what the newest has written.
    "storage_compatibility_version": "v1.2.0",
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    # A table that is not there is an error, never a Python variable of that name.
    "python_enable_replacements": False,
}


def opened(path: Path) -> duckdb.DuckDBPyConnection:
    """A connection to the state file at `path`, in the newest format; the file is made if it is not there."""
    with explaining(path):
        try:
            if not path.exists():
                _make(path)
        except OSError as error:
            raise StateUnwritableError(str(path), error.strerror or str(error)) from error
        connection = _connect(path)
        try:
            migrate(connection, str(path))
        except BaseException:
            connection.close()
            raise
        return connection


def _connect(path: Path) -> duckdb.DuckDBPyConnection:
    return duckdb.connect(str(path), config=_CONFIG)


def _make(path: Path) -> None:
    """Makes a complete empty state file appear at once, so that a crash never leaves half a file at `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as directory:
        fresh = Path(directory) / path.name
        _write_empty(fresh)
        # The log of a database file that was deleted: DuckDB would replay it into the new one.
        path.with_name(path.name + ".wal").unlink(missing_ok=True)
        try:
            os.link(fresh, path)
        except FileExistsError:
            pass  # Another process was first. Its file is as good, and may be in use.
        except OSError:
            fresh.rename(path)  # A file system without hard links.


def _write_empty(path: Path) -> None:
    with _connect(path) as connection:
        connection.begin()
        connection.execute(CREATE_FORMAT)
        connection.execute(CREATE_STREAM)
        connection.execute("INSERT INTO format (version) VALUES (?)", [FORMAT_VERSION])
        connection.commit()
