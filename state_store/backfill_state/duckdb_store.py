"""The store in one DuckDB file, which a person can read with plain SQL."""

from __future__ import annotations

import os

import pyarrow as pa

from backfill_state.admission import (
    Stream,
    begins,
    moves,
    require_bounds,
    require_fitting_barrier,
    require_fitting_bounds,
)
from backfill_state.closing import Closable
from backfill_state.duckdb_file import StateFile
from backfill_state.duckdb_rows import (
    PROGRESS_FILE,
    forget_stream,
    read_bounds,
    read_progress,
    read_stream,
    write_barrier,
    write_bounds,
    write_stream,
)
from backfill_state.store import Barrier, StreamIdentity


class DuckDBProgressStore(Closable):
    """A `ProgressStore` in the file at `path`.

    Making the object opens nothing. The first verb opens the file, or makes it, and it stays open until `close`. Until
    then DuckDB lets no other process open it, not even for reading; so a stream closes it soon.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = StateFile(path, PROGRESS_FILE)

    def identity(self) -> StreamIdentity | None:
        stream = self._stream()
        return None if stream is None else stream.identity

    def epoch(self) -> int | None:
        stream = self._stream()
        return None if stream is None else stream.epoch

    def offset(self) -> str | None:
        stream = self._stream()
        return None if stream is None else stream.offset

    def progress(self) -> pa.Table:
        with self._file.transaction() as connection:
            return read_progress(connection, read_stream(connection))

    def bounds(self) -> pa.Table:
        with self._file.transaction() as connection:
            return read_bounds(connection, read_stream(connection))

    def begin(self, identity: StreamIdentity) -> None:
        with self._file.transaction() as connection:
            if begins(read_stream(connection), identity, str(self._file)):
                write_stream(connection, identity)

    def set_bounds(self, bounds: pa.Table) -> None:
        with self._file.transaction() as connection:
            require_bounds(read_stream(connection), bounds, str(self._file))
            write_bounds(connection, bounds)

    def commit(self, barrier: Barrier) -> None:
        with self._file.transaction() as connection:
            if moves(read_stream(connection), barrier, str(self._file)):
                write_barrier(connection, barrier)

    def rebuild(self, identity: StreamIdentity, bounds: pa.Table, barrier: Barrier) -> None:
        require_fitting_bounds(identity, bounds)
        require_fitting_barrier(identity, barrier)
        with self._file.transaction() as connection:
            forget_stream(connection)
            write_stream(connection, identity)
            write_bounds(connection, bounds)
            write_barrier(connection, barrier)

    def reset(self) -> None:
        with self._file.transaction() as connection:
            forget_stream(connection)

    def close(self) -> None:
        self._file.close()

    def _stream(self) -> Stream | None:
        with self._file.transaction() as connection:
            return read_stream(connection)
