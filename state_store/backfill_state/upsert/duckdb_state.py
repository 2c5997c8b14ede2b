"""The upsert state in one DuckDB file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa

from backfill_state.closing import Closable
from backfill_state.duckdb_file import StateFile
from backfill_state.errors import (
    ConsolidationError,
    StateConflictError,
    StateDamagedError,
    StateMemoryError,
    UpsertStateDamagedError,
    UpsertStateMemoryError,
)
from backfill_state.upsert.chunks import Chunks, LookupResult
from backfill_state.upsert.columns import Column
from backfill_state.upsert.duckdb_tables import StateHeader, read_header, upsert_file, write_header
from backfill_state.upsert.pending import PendingLines
from backfill_state.upsert.refusals import (
    require_batch,
    require_consolidatable,
    require_consolidated,
    require_extended,
    require_no_batch,
)
from backfill_state.upsert.segments import SEGMENT_BYTES, SEGMENT_ENTRIES, Segments
from backfill_state.upsert.state import (
    ConsolidateStats,
    Found,
    MergeStats,
    PutStats,
    Totals,
    Updates,
    UpsertLayout,
)
from backfill_state.upsert.stored import restored, stored_keys, stored_output, stored_updates

MEMORY_LIMIT: Final = "512MB"
CHUNK_ROWS: Final = 245_760
"""How many keys are looked up at once, unless told otherwise: each time, DuckDB goes over the whole state.

As many are in two row groups of DuckDB's, so that large writes leave no small ones to be merged later.
"""

BATCHES_AT_MOST: Final = 1000
"""How many batches are written before the file is opened anew: as long as it is open, DuckDB keeps 8 kB for each batch
beyond the memory that it may take, which in a stream is hundreds of megabytes a day.
"""


@dataclass(slots=True)
class _Batch:
    """The batch that is being written."""

    token: str
    standing: StateHeader
    """Where the state stands with what has been written of the batch; its token is that of the batch before."""

    looked_up: LookupResult | None = None
    """What its last `multi_get` found, as long as nothing has been written since."""

    @property
    def is_replayed(self) -> bool:
        """Whether the state has the batch already: nothing is written then."""
        return self.standing.token == self.token

    def moved(self, standing: StateHeader) -> None:
        self.standing, self.looked_up = standing, None


class DuckDBUpsertState(Closable):
    """An `UpsertState` in the file at `path`.

    Making the object opens nothing. The first verb opens the file, or makes it, and it stays open until `close`; until
    then, no other process can open it. A batch that begins a segment closes it, and the next verb opens it again:
    `segments` says why. So does each BATCHES_AT_MOST-th batch. DuckDB takes at most `memory_limit` for what it keeps of
    the file and for its work, and writes more than that to `<path>.tmp`; what is given and returned comes on top.

    A file of a layout that `layout` extends gets the columns that it lacks, null in each row there is, with the first
    batch, replayed or not, or the first `multi_get`; from then on it no longer has the other layout.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        layout: UpsertLayout,
        *,
        tombstones: bool = True,
        memory_limit: str = MEMORY_LIMIT,
        chunk_rows: int = CHUNK_ROWS,
        segment_entries: int = SEGMENT_ENTRIES,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self._file = StateFile(path, upsert_file(memory_limit, self._begin))
        self._layout = layout
        self._segments = Segments(layout, full=segment_entries, full_bytes=segment_bytes)
        self._chunks = Chunks(self._segments, chunk_rows, tombstones)
        self._pending = PendingLines(layout)
        self._batch: _Batch | None = None
        self._batches = 0

    @property
    def path(self) -> Path:
        return self._file.path

    @property
    def layout(self) -> UpsertLayout:
        return self._layout

    def token(self) -> str | None:
        with self._reading() as (_, standing):
            return standing.token

    def totals(self) -> Totals:
        with self._reading() as (_, standing):
            return standing.totals

    def consolidating(self) -> bool:
        with self._reading() as (_, standing):
            return standing.consolidating

    def file_bytes(self) -> int:
        return _size(self.path) + _size(self.path.with_name(self.path.name + ".wal"))

    def memory_bytes(self) -> int:
        with self._reading() as (connection, _):
            [(memory,)] = connection.execute("SELECT sum(memory_usage_bytes) FROM duckdb_memory()").fetchall()
        return int(memory)

    @contextmanager
    def batch(self, token: str) -> Iterator[bool]:
        require_no_batch(self._batch, str(self._file))
        with self._transaction() as connection:
            batch, begun = _Batch(token, self._standing(connection)), self._segments.begun
            try:
                self._batch = batch  # Not before: after a Ctrl-C in between nobody would end it.
                yield not batch.is_replayed
                with self._using() as (held, standing):
                    if not batch.is_replayed:
                        self._segments.clean(held)
                        write_header(held, replace(standing, token=token))
            finally:
                self._batch = None
        self._batches += 1
        if self._segments.begun > begun or self._batches >= BATCHES_AT_MOST:
            # Not opened again here: what fails after the commit must not look like a batch that stored nothing.
            self.close()

    def multi_get(self, keys: pa.Table, *, most_bytes: int | None = None) -> Found:
        with self._using() as (connection, standing):
            require_consolidated(standing.consolidating, str(self._file))
            stored = stored_keys(self._layout, keys)
            if most_bytes is not None:
                # As many rows as a chunk has are read before it is known how large they are.
                stored = stored.slice(0, max(1, most_bytes // standing.totals.average))
            found, looked_up = self._chunks.look_up(connection, stored, most_bytes)
            if self._batch is not None:
                self._batch.looked_up = looked_up
        return replace(found, rows=restored(found.rows, self._layout.row))

    def multi_put(self, updates: Updates) -> PutStats:
        batch = require_batch(self._batch, str(self._file))
        with self._using() as (connection, standing):
            stored = stored_updates(self._layout, updates)
            if batch.is_replayed:
                return PutStats()
            require_consolidated(standing.consolidating, str(self._file))
            stats, seq = self._chunks.write(connection, stored, standing.seq, batch.looked_up)
            batch.moved(replace(standing, totals=_grown(standing.totals, stats), seq=seq))
        return stats

    def multi_merge(self, keys: pa.Table, rows: pa.Table, diffs: Column) -> MergeStats:
        batch = require_batch(self._batch, str(self._file))
        with self._using() as (connection, standing):
            stored = stored_output(self._layout, keys, rows, diffs)
            if batch.is_replayed:
                return MergeStats()
            entries = standing.totals.values + standing.totals.tombstones
            require_consolidatable(standing.consolidating, entries, str(self._file))
            self._pending.add(connection, stored)
            batch.moved(replace(standing, consolidating=True))
        return stored.stats

    def consolidate_chunk(self, keys: pa.Table, rows: pa.Table, diffs: Column, *, completed: bool) -> ConsolidateStats:
        merge = self.multi_merge(keys, rows, diffs)
        batch = require_batch(self._batch, str(self._file))
        with self._using() as (connection, standing):
            if not completed or batch.is_replayed:
                return ConsolidateStats(merge)
            done = self._pending.complete(connection, self._segments, standing.seq)
            if done.wrong:
                raise ConsolidationError(str(self._file), done.wrong, done.lines)
            totals = Totals(done.count, 0, done.size)
            batch.moved(replace(standing, consolidating=False, totals=totals, seq=standing.seq + done.count))
        return ConsolidateStats(merge, done.count, done.size)

    def clear(self) -> None:
        batch = require_batch(self._batch, str(self._file))
        with self._using() as (connection, standing):
            if batch.is_replayed:
                return
            self._empty(connection)
            batch.moved(replace(standing, totals=Totals(), consolidating=False))

    def reset(self) -> None:
        require_no_batch(self._batch, str(self._file))
        with self._transaction() as connection:
            self._begin(connection)

    def close(self) -> None:
        self._batches = 0
        self._file.close()

    def _standing(self, connection: duckdb.DuckDBPyConnection) -> StateHeader:
        standing = read_header(connection)
        require_extended(standing.layout, self._layout, str(self._file))
        return standing

    def _extended(self, connection: duckdb.DuckDBPyConnection, standing: StateHeader) -> StateHeader:
        """Adds the columns that the file lacks. Returns where the state stands then."""
        count = len(standing.layout.row)
        self._segments.extend(connection, count)
        self._pending.extend(connection, count)
        extended = replace(standing, layout=self._layout)
        write_header(connection, extended)
        return extended

    def _begin(self, connection: duckdb.DuckDBPyConnection) -> None:
        write_header(connection, StateHeader(self._layout, None, consolidating=False, totals=Totals(), seq=0))
        self._empty(connection)

    def _empty(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._segments.create(connection)
        self._pending.create(connection)

    @contextmanager
    def _reading(self) -> Iterator[tuple[duckdb.DuckDBPyConnection, StateHeader]]:
        """The connection, and where the state stands: in the batch being written, else in a transaction of its own."""
        if self._batch is not None:
            yield self._held(), self._batch.standing
            return
        with self._transaction() as connection:
            yield connection, self._standing(connection)

    @contextmanager
    def _using(self) -> Iterator[tuple[duckdb.DuckDBPyConnection, StateHeader]]:
        """As `_reading`, for verbs that need keys and rows: the file has all columns of the layout by then."""
        with self._reading() as (connection, found):
            standing = found if found.layout == self._layout else self._extended(connection, found)
            if self._batch is not None:
                self._batch.standing = standing
            yield connection, standing

    def _held(self) -> duckdb.DuckDBPyConnection:
        """The connection that writes the batch. Raises StateConflictError if `close` has rolled the batch back, because
        whatever came after that would be stored by itself.
        """
        if self._file.connection is None:
            raise StateConflictError(
                str(self._file), "it was closed in the midst of a batch, of which nothing is stored; begin it again"
            )
        return self._file.connection

    @contextmanager
    def _transaction(self) -> Iterator[duckdb.DuckDBPyConnection]:
        try:
            with self._file.transaction() as connection:
                yield connection
        except StateDamagedError as error:
            raise UpsertStateDamagedError(error.path, error.found) from error
        except StateMemoryError as error:
            raise UpsertStateMemoryError(error.path, error.found) from error


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _grown(was: Totals, by: PutStats) -> Totals:
    return Totals(was.values + by.values_diff, was.tombstones + by.tombstones_diff, was.size + by.size_diff)
