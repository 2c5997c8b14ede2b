"""The store that needs no disk: what the laws mean, in as few lines as possible."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from backfill_state.admission import (
    Stream,
    begins,
    moves,
    require_bounds,
    require_fitting_barrier,
    require_fitting_bounds,
)
from backfill_state.closing import Closable
from backfill_state.layout import bounds_schema, progress_schema
from backfill_state.store import Barrier, StreamIdentity

_WHERE: Final = "the state in memory"
_NO_KEY: Final = pa.schema([])


class InMemoryProgressStore(Closable):
    """A `ProgressStore` that lasts as long as the object; the reference for all others, and for tests."""

    def __init__(self) -> None:
        self._stream: Stream | None = None
        self._progress: pa.Table = progress_schema(_NO_KEY).empty_table()
        self._bounds: pa.Table = bounds_schema(_NO_KEY).empty_table()

    def identity(self) -> StreamIdentity | None:
        return None if self._stream is None else self._stream.identity

    def epoch(self) -> int | None:
        return None if self._stream is None else self._stream.epoch

    def offset(self) -> str | None:
        return None if self._stream is None else self._stream.offset

    def progress(self) -> pa.Table:
        return self._progress

    def bounds(self) -> pa.Table:
        return self._bounds

    def begin(self, identity: StreamIdentity) -> None:
        if begins(self._stream, identity, _WHERE):
            self._stream = Stream(identity)
            self._forget_rows(identity.key)

    def set_bounds(self, bounds: pa.Table) -> None:
        require_bounds(self._stream, bounds, _WHERE)
        self._bounds = _ordered(bounds, self._bounds.schema)

    def commit(self, barrier: Barrier) -> None:
        if moves(self._stream, barrier, _WHERE) and self._stream is not None:
            self._progress = _upserted(self._progress, barrier.changed)
            self._stream = replace(self._stream, epoch=barrier.epoch, offset=barrier.offset)

    def rebuild(self, identity: StreamIdentity, bounds: pa.Table, barrier: Barrier) -> None:
        require_fitting_bounds(identity, bounds)
        require_fitting_barrier(identity, barrier)
        self.reset()
        self.begin(identity)
        self.set_bounds(bounds)
        self.commit(barrier)

    def reset(self) -> None:
        self._stream = None
        self._forget_rows(_NO_KEY)

    def close(self) -> None:
        """Nothing is held open; what is stored stays."""

    def _forget_rows(self, key: pa.Schema) -> None:
        self._progress = progress_schema(key).empty_table()
        self._bounds = bounds_schema(key).empty_table()


def _upserted(rows: pa.Table, changed: pa.Table) -> pa.Table:
    """The rows, with those of the changed vnodes replaced or added."""
    kept = rows.filter(pc.invert(pc.is_in(rows.column(0), value_set=changed.column(0).combine_chunks())))
    changed = pa.Table.from_arrays(changed.columns, schema=rows.schema)
    return _ordered(pa.concat_tables([kept, changed]), rows.schema)


def _ordered(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with ascending vnodes; by position, because two columns may have one name."""
    ascending = rows.take(pc.sort_indices(rows.column(0)))
    return pa.Table.from_arrays(ascending.columns, schema=schema)
