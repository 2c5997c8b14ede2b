"""The two ways to connect to a DuckDB file: in an instance of DuckDB of its own, or in one that stays.

An instance, which has the settings, takes some 20 ms to make, whatever it opens. To attach a file to one and to detach
it takes one millisecond. Either way, a file is locked, written and recovered alike.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, TypeAlias
from weakref import WeakSet

import duckdb

Setting: TypeAlias = str | bool | int | float | list[str]

_EVERY_FILE: Final[Mapping[str, Setting]] = {
    # The oldest DuckDB we run with can open what the newest has written. From v1.4.0 on a log is refused that does not
    # belong to its file, as where the two were copied at different moments.
    "storage_compatibility_version": "v2.0.0",
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    # A table that is not there is an error, never a Python variable of that name.
    "python_enable_replacements": False,
}


ATTACHED_AT_MOST: Final = 1000
"""How many files an instance attaches one after the other before it ends: DuckDB keeps some kilobytes for each barrier
as long as its instance is there, which in a stream is hundreds of megabytes a day.
"""


@dataclass(frozen=True, slots=True)
class ConnectedFile:
    """A connection whose tables are those of a file.

    `close` is called once. It rolls back what is not committed, and raises nothing of DuckDB's: what cannot be moved
    from the log into the file, the next connection reads from the log.
    """

    connection: duckdb.DuckDBPyConnection
    close: Callable[[], None]


class Instances(Protocol):
    """Where connections come from."""

    def connect(self, path: Path) -> ConnectedFile:
        """Makes an empty file where there is none. Connections of this process to one absolute path share the file.

        Raises DuckDB's errors.
        """


class OwnInstances:
    """An instance for each file, with these settings: each file has memory and a temporary folder of its own."""

    def __init__(self, settings: Mapping[str, Setting]) -> None:
        self._settings: Final = {**_EVERY_FILE, **settings}

    def connect(self, path: Path) -> ConnectedFile:
        connection = duckdb.connect(str(path), config=self._settings)

        def close() -> None:
            with suppress(duckdb.Error):
                connection.close()

        return ConnectedFile(connection, close)


class SharedInstance:
    """One instance for all files, with these settings, which another replaces in the end. Thread-safe."""

    def __init__(self, settings: Mapping[str, Setting]) -> None:
        # No temporary folder: it would be `.tmp` in whatever folder the process is in, and stay there.
        self._settings: Final = {**_EVERY_FILE, "temp_directory": "", **settings}
        self._instance: _Instance | None = None
        self._of_parent: _Instance | None = None
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._leave_to_parent)

    def _leave_to_parent(self) -> None:
        """For a process that was just forked. It gets a new lock, since one that another thread had would never be
        released here. It keeps the parent's instance as it is, because closing it writes to files that the parent has
        open.
        """
        self._of_parent = self._instance
        self._instance = None
        self._lock = threading.Lock()

    def connect(self, path: Path) -> ConnectedFile:
        with self._lock:
            if self._instance is not None:
                self._instance.detach_unused()
            if self._instance is None or not self._instance.usable:
                self._instance = _Instance(duckdb.connect(":memory:", config=self._settings))
            instance = self._instance
            connection = instance.connect(path)

        def close() -> None:
            with self._lock:
                instance.leave(path, connection)

        return ConnectedFile(connection, close)


@dataclass(frozen=True, slots=True)
class _Attached:
    name: str
    users: WeakSet[duckdb.DuckDBPyConnection] = field(default_factory=WeakSet)
    """A set and no number: a Ctrl-C between two steps would leave that too high, and the file locked for good."""


class _Instance:
    def __init__(self, root: duckdb.DuckDBPyConnection) -> None:
        self._root = root
        self._attached: dict[Path, _Attached] = {}
        self._numbers = itertools.count(1)
        self._ends = False
        self.usable = True

    def connect(self, path: Path) -> duckdb.DuckDBPyConnection:
        connection = self._root.cursor()
        try:
            attached = self._attached.get(path) or self._attach(path)
            attached.users.add(connection)
            connection.execute(f"USE {attached.name}")
        except BaseException:
            self._ends = True  # It may never again attach a file; but others are still read and written in it.
            self.leave(path, connection)
            raise
        return connection

    def _attach(self, path: Path) -> _Attached:
        number = next(self._numbers)
        self._ends = self._ends or number == ATTACHED_AT_MOST
        # Noted first: a file that is attached and not noted would stay attached.
        attached = self._attached[path] = _Attached(f"file_{number}")
        self._root.execute(f"ATTACH {_literal(path)} AS {attached.name} (TYPE duckdb)")
        return attached

    def leave(self, path: Path, connection: duckdb.DuckDBPyConnection) -> None:
        connection.close()
        if path in self._attached:
            self._attached[path].users.discard(connection)
        self.detach_unused()

    def detach_unused(self) -> None:
        """Detaches files without a connection, also where that was cut short before. An instance that is to end does so
        with the last connection to its files.
        """
        for path, attached in list(self._attached.items()):
            if not attached.users:
                try:
                    self._root.execute(f"DETACH DATABASE IF EXISTS {attached.name}")
                except duckdb.Error:
                    self.usable = False  # What it still has of the file goes with it.
                del self._attached[path]
        if not self._attached and (self._ends or not self.usable):
            self.usable = False
            self._root.close()


def _literal(path: Path) -> str:
    """The path as an SQL literal, since ATTACH takes no parameters."""
    quoted = str(path).replace("'", "''")
    return f"'{quoted}'"
