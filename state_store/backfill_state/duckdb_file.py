"""Opening a DuckDB file of this package, and making it if there is none."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import duckdb

from backfill_state.closing import Closable
from backfill_state.duckdb_errors import explaining, reaching
from backfill_state.duckdb_instance import ConnectedFile, Instances
from backfill_state.migrations import Step, migrate


@dataclass(frozen=True)
class FileForm:
    """What a kind of file is like: where connections to it come from, and the tables of an empty one.

    Beside these tables, `format_table` keeps the version of the format; `steps` lead to the newest from older ones.
    """

    instances: Instances
    format_table: str
    steps: Sequence[Step]
    create_tables: Callable[[duckdb.DuckDBPyConnection], object]


class StateFile(Closable):
    """A file that the first transaction opens, or makes, and that stays open until `close`.

    As long as it is open DuckDB lets no other process open it, not even for reading.
    """

    def __init__(self, path: str | os.PathLike[str], form: FileForm) -> None:
        # Absolute, because DuckDB gives a meaning of its own to names such as `:memory:` and `md:state`.
        self.path: Final = Path(path).absolute()
        self._form = form
        self._open: ConnectedFile | None = None

    def __str__(self) -> str:
        return f"the state file {self.path}"

    @property
    def connection(self) -> duckdb.DuckDBPyConnection | None:
        """The connection to the file; None while it is not open."""
        return None if self._open is None else self._open.connection

    @contextmanager
    def transaction(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """One transaction on the open file; what it did is durable when the block has ended without an error."""
        if self._open is None:
            self._open = _opened(self.path, self._form)
        connection = self._open.connection
        with explaining(self.path):
            try:
                connection.begin()
                yield connection
                connection.commit()
            except BaseException:
                # Closing rolls back, and DuckDB may have given up on a database that it failed to write.
                self.close()
                raise

    def close(self) -> None:
        if self._open is not None:
            was_open, self._open = self._open, None
            with explaining(self.path):
                was_open.close()


def _opened(path: Path, form: FileForm) -> ConnectedFile:
    """A connection to the state file at `path`, in the newest format; the file is made if it is not there."""
    with explaining(path):
        with reaching(path):
            if not path.exists():
                _make(path, form)
        connected = form.instances.connect(path)
        try:
            migrate(connected.connection, str(path), form.steps, form.format_table)
        except BaseException:
            connected.close()
            raise
        return connected


def _make(path: Path, form: FileForm) -> None:
    """Makes a complete empty state file appear at once, so that a crash never leaves half a file at `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A database file that was deleted may have left its log, which DuckDB would replay into the new one. It is removed
    # now: by the time the new file is ready, there may be the file of another process, with its log.
    path.with_name(path.name + ".wal").unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as directory:
        fresh = Path(directory) / path.name
        with closing(form.instances.connect(fresh)) as connected:
            connection = connected.connection
            connection.begin()
            connection.execute(f"CREATE TABLE {form.format_table} (version INTEGER NOT NULL)")
            connection.execute(f"INSERT INTO {form.format_table} VALUES (?)", [1 + len(form.steps)])
            form.create_tables(connection)
            connection.commit()
            connection.execute("CHECKPOINT")  # The file alone gets its name, without its log.
        try:
            os.link(fresh, path)
        except FileExistsError:
            pass  # Another process was first. Its file is as good, and may be in use.
        except OSError:  # A file system without hard links; a rename takes a name away from a file that has it.
            if not path.exists():
                fresh.rename(path)
    _sync_names(path.parent)


def _sync_names(folder: Path) -> None:
    """Makes the names in this folder durable: DuckDB syncs what is in a file, but not its name. Else a loss of power
    might forget a stream whose place in the upstream's log has been made.
    """
    with suppress(OSError):  # Not every file system can sync a folder.
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
