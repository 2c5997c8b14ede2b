"""The two ways to connect to a DuckDB file: in an instance of DuckDB of its own, or in one that stays.

An instance takes some 20 ms to make, whatever it opens, and has the settings. To attach a file to one and to detach it
takes one millisecond. Either way a file is locked, written and recovered alike.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import duckdb

Setting: TypeAlias = str | bool | int | float | list[str]

_EVERY_FILE: Final[Mapping[str, Setting]] = {
    # The oldest DuckDB we run with can open what the newest has written. From v1.4.0 on a log that is not of its file,
    # as where the two were copied at different moments, is refused.
    "storage_compatibility_version": "v2.0.0",
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    # A table that is not there is an error, never a Python variable of that name.
    "python_enable_replacements": False,
}


@dataclass(frozen=True, slots=True)
class Connected:
    """A connection whose tables are those of a file.

    `close` is called once. It rolls back what is not committed, and raises nothing of DuckDB's: what cannot be moved
    from the log into the file, the next connection reads from the log.
    """

    connection: duckdb.DuckDBPyConnection
    close: Callable[[], None]


class Instances(Protocol):
    """Where connections come from."""

    def connect(self, path: Path) -> Connected:
        """Makes an empty file where there is none. Connections of this process to one absolute path share the file.

        Raises DuckDB's errors.
        """


class OfItsOwn:
    """An instance for each file, with these settings: which has its memory for itself, and its own temporary folder."""

    def __init__(self, settings: Mapping[str, Setting]) -> None:
        self._settings: Final = {**_EVERY_FILE, **settings}

    def connect(self, path: Path) -> Connected:
        connection = duckdb.connect(str(path), config=self._settings)

        def close() -> None:
            with suppress(duckdb.Error):
                connection.close()

        return Connected(connection, close)


class Kept:
    """One instance for all files, with these settings; another one, once DuckDB has given up on it. For any thread."""

    def __init__(self, settings: Mapping[str, Setting]) -> None:
        self._settings: Final = {**_EVERY_FILE, **settings}
        self._lock = threading.Lock()
        self._instance: _Instance | None = None

    def connect(self, path: Path) -> Connected:
        with self._lock:
            if self._instance is None or not self._instance.usable:
                self._instance = _Instance(duckdb.connect(":memory:", config=self._settings))
            instance = self._instance
            connection = instance.connect(path)

        def close() -> None:
            with self._lock:
                instance.leave(path, connection)

        return Connected(connection, close)


@dataclass(slots=True)
class _Attached:
    name: str
    users: int = 0


class _Instance:
    def __init__(self, root: duckdb.DuckDBPyConnection) -> None:
        self._root = root
        self._attached: dict[Path, _Attached] = {}
        self._numbers = itertools.count()
        self.usable = True

    def connect(self, path: Path) -> duckdb.DuckDBPyConnection:
        attached = self._attached.get(path) or self._attach(path)
        attached.users += 1
        connection = self._root.cursor()
        try:
            connection.execute(f"USE {attached.name}")
        except BaseException:
            self.leave(path, connection)
            raise
        return connection

    def _attach(self, path: Path) -> _Attached:
        attached = _Attached(f"file_{next(self._numbers)}")
        try:
            self._root.execute(f"ATTACH {_literal(path)} AS {attached.name} (TYPE duckdb)")
        except BaseException:
            # It may never attach one again; but others are still read and written in it.
            self.usable = bool(self._attached)
            self._close_if_done()
            raise
        self._attached[path] = attached
        return attached

    def leave(self, path: Path, connection: duckdb.DuckDBPyConnection) -> None:
        connection.close()
        attached = self._attached[path]
        attached.users -= 1
        if attached.users == 0:
            del self._attached[path]
            try:
                self._root.execute(f"DETACH {attached.name}")
            except duckdb.Error:
                self.usable = False  # What it still has of the file goes with it.
        self._close_if_done()

    def _close_if_done(self) -> None:
        """One that DuckDB has given up on ends with the last connection to its files."""
        if not self.usable and not self._attached:
            self._root.close()


def _literal(path: Path) -> str:
    """ATTACH takes no parameters."""
    quoted = str(path).replace("'", "''")
    return f"'{quoted}'"
