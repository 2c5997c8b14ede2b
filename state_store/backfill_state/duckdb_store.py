"""The store in one DuckDB file, which a person can read with plain SQL."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import duckdb
import pyarrow as pa

from backfill_state.admission import (
    begins,
    moves,
    require_bounds,
    require_fitting_barrier,
    require_fitting_bounds,
)
from backfill_state.duckdb_errors import explaining
from backfill_state.duckdb_file import opened
from backfill_state.duckdb_rows import (
    forget_stream,
    read_bounds,
    read_progress,
    read_stream,
    write_barrier,
    write_bounds,
    write_stream,
)
from backfill_state.store import Barrier, StreamIdentity


class DuckDBProgressStore:
    """A `ProgressStore` in the file at `path`.

    Making the object opens nothing. The first verb opens the file, or makes it, and it stays open until `close`: as
    long as that, DuckDB lets no other process open it, not even for reading. So a stream keeps it short.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # Absolute, because DuckDB gives a meaning of its own to names such as `:memory:` and `md:state`.
        self._path = Path(path).absolute()
        self._connection: duckdb.DuckDBPyConnection | None = None

    @property
    def path(self) -> Path:
        return self._path

    def identity(self) -> StreamIdentity | None:
        with self._transaction() as connection:
            stream = read_stream(connection)
        return None if stream is None else stream.identity

    def epoch(self) -> int | None:
        with self._transaction() as connection:
            stream = read_stream(connection)
        return None if stream is None else stream.epoch

    def offset(self) -> str | None:
        with self._transaction() as connection:
            stream = read_stream(connection)
        return None if stream is None else stream.offset

    def progress(self) -> pa.Table:
        with self._transaction() as connection:
            return read_progress(connection, read_stream(connection))

    def bounds(self) -> pa.Table:
        with self._transaction() as connection:
            return read_bounds(connection, read_stream(connection))

    def begin(self, identity: StreamIdentity) -> None:
        with self._transaction() as connection:
            if begins(read_stream(connection), identity, self._where):
                write_stream(connection, identity)

    def set_bounds(self, bounds: pa.Table) -> None:
        with self._transaction() as connection:
            require_bounds(read_stream(connection), bounds, self._where)
            write_bounds(connection, bounds)

    def commit(self, barrier: Barrier) -> None:
        with self._transaction() as connection:
            if moves(read_stream(connection), barrier, self._where):
                write_barrier(connection, barrier)

    def rebuild(self, identity: StreamIdentity, bounds: pa.Table, barrier: Barrier) -> None:
        require_fitting_bounds(identity, bounds)
        require_fitting_barrier(identity, barrier)
        with self._transaction() as connection:
            forget_stream(connection)
            write_stream(connection, identity)
            write_bounds(connection, bounds)
            write_barrier(connection, barrier)

    def reset(self) -> None:
        with self._transaction() as connection:
            forget_stream(connection)

    def close(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            # Everything is committed: what closing cannot write into the file, the next opening reads from the log.
            with suppress(duckdb.Error):
                connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def _where(self) -> str:
        return f"the state file {self._path}"

    @contextmanager
    def _transaction(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """One transaction on the open file; what it did is durable when the block has ended without an error."""
        if self._connection is None:
            self._connection = opened(self._path)
        with explaining(self._path):
            try:
                self._connection.begin()
                yield self._connection
                self._connection.commit()
            except BaseException:
                # Closing rolls back, and DuckDB may have given up on a database that it failed to write.
                self.close()
                raise
