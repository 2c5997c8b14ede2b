"""Delta Lake behind the `Upstream` contract."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from backfill.epoch import Epoch
from backfill.errors import DataLossError, OptionsError, SchemaChangedError, SnapshotGoneError
from backfill.options import Options
from backfill.options.texts import column_names
from backfill.plan import Extent, Measure
from backfill.upstream import DELTA, Bookmark, Identity, Pin, Step, TableSchema, TableSize
from backfill.upstream.added import NOTHING_ADDED, Added
from backfill.upstream.delta.changes.history import History
from backfill.upstream.delta.changes.span import DeltaChangeReader, span
from backfill.upstream.delta.failures import translating
from backfill.upstream.delta.files.log import Log
from backfill.upstream.delta.position import Position
from backfill.upstream.delta.snapshot.conditions import require_condition, require_row_condition
from backfill.upstream.delta.snapshot.measuring import bounds, last_before, measured
from backfill.upstream.delta.snapshot.reader import DeltaSnapshotReader
from backfill.upstream.delta.snapshot.sizes import in_files, row_bytes
from backfill.upstream.delta.tables.latest import LatestVersion
from backfill.upstream.delta.tables.opening import (
    open_latest,
    reading,
    require_not_older,
    require_same_commit,
    require_same_history,
    require_same_table,
)
from backfill.upstream.delta.tables.properties import require_followable
from backfill.upstream.delta.tables.table import Table, described, key_columns
from backfill.upstream.delta.tables.ways_out import REPAIR
from backfill.upstream.lag import UNKNOWN, Lag
from backfill.upstream.noted import noted, renewed
from backfill.upstream.recent_lag import RecentLag
from backfill.vnode import WHOLE_TABLE, Coverage, Key, KeyRange
from backfill.wording import FRESH_START, in_option

_KEY: Final = "key"
"""What the bookmark calls `Table.order`."""

_COLUMNS: Final = "columns"
"""What the bookmark calls the columns that the table had for the process that plans: its chunks lack later ones."""

MOST_COUNTED: Final = 1000
"""The sizes of more commits than this are not added up."""


class DeltaUpstream:
    """One Delta table. Keeps nothing that another process would miss."""

    name = DELTA

    def __init__(self, options: Options) -> None:
        self._options = options
        self._uri = options.path
        self._row_bytes: int | None = None
        self._added = NOTHING_ADDED
        self._lately = RecentLag()

    # -- the table -------------------------------------------------------------------------------------------------

    @cached_property
    def _history(self) -> History:
        found = open_latest(self._uri)
        with translating(self._uri):
            table = described(found, self._options)
            require_condition(found, "filter", self._options.filter)
            require_row_condition(found, "snapshotFilter", self._options.stream.snapshot_filter)
            return History(table, Log(found), self._options.fail_on_data_loss)

    @cached_property
    def _latest(self) -> LatestVersion:
        return LatestVersion(self._history.table, self._history.log)

    @property
    def _table(self) -> Table:
        return self._history.table

    def schema(self) -> TableSchema:
        return self._table.schema

    def reader(self) -> DeltaSnapshotReader:
        return DeltaSnapshotReader(self._table, self._options.filter, self._options.stream.snapshot_filter)

    def span(self, starting: str, ending: str) -> DeltaChangeReader:
        return span(self._table, self._latest.head().table, starting, ending)

    def identity(self) -> Identity:
        return Identity(DELTA, self._uri, self._table.table_id)

    def size(self) -> TableSize:
        """The size by the files' statistics, and by a look at some rows, which take several times as much in memory as
        in a compressed file.
        """
        with self._reading_latest() as table:
            stored = in_files(table)
            if self._row_bytes is None:
                self._row_bytes = row_bytes(table, self._table.columns)
        return replace(stored, row_bytes=max(stored.row_bytes, self._row_bytes or 1))

    def typed(self, keys: Sequence[Key]) -> pa.RecordBatch:
        return self._table.key.typed(keys)

    def covered(self, keys: pa.RecordBatch, coverage: Coverage) -> pa.Array[Any]:
        return self._table.key.covered(keys, coverage)

    def bounds(self, vnodes: int, within: KeyRange = WHOLE_TABLE) -> tuple[Key, ...]:
        """Reads the key columns of all these rows, once for a stream or a request; puts a sample of them in order."""
        rows = self.size().row_count
        with self._reading_latest() as latest:
            return bounds(latest, self._table.key, vnodes=vnodes, rows=rows, within=within)

    def range_of(self, first: Key | None, last: Key | None) -> KeyRange:
        table = self._table
        begin, upto = (None if end is None else table.key.canonical(end) for end in (first, last))
        if begin is None:
            return KeyRange(None, upto)
        with self._reading_latest() as latest:
            return KeyRange(last_before(latest, table.key, begin), upto)

    @contextmanager
    def _reading_latest(self) -> Iterator[DeltaTable]:
        latest = self._latest.head()
        with reading(self._uri, str(latest.position.version), REPAIR):
            yield latest.table

    # -- the place in the log --------------------------------------------------------------------------------------

    def bookmark(self, stream: str) -> Bookmark:
        names = (("stream", stream), ("table_id", self._table.table_id), (_KEY, self._table.order))
        return (*names, (_COLUMNS, self._columns))

    @property
    def _columns(self) -> str:
        return ", ".join(map(in_option, self._table.names))

    def attach(self, bookmark: Bookmark, after: Epoch | None, ahead: Collection[str] = ()) -> Bookmark:
        latest = open_latest(self._uri)
        require_followable(latest, self._uri)
        _require_of_delta(bookmark)
        require_same_table(latest, self._uri, noted(bookmark, "table_id"))
        self._added = self._added_since(bookmark)
        now = renewed(bookmark, ((_COLUMNS, self._columns),))
        if after is None:
            return now
        position = Position.parse(after.position)
        require_same_table(latest, self._uri, position.table_id)
        require_same_history(latest, self._uri, position, after.timestamp)
        for reached in map(Position.parse, ahead):
            require_not_older(latest, self._uri, reached)
        if latest.version() > position.version:
            # The oldest commits are cleaned up first. The others are looked for when they are needed.
            self._history.require_passable(position.version + 1)
        return now

    def added(self) -> Added:
        """The columns that the table did not have for the process before this one, by the bookmark."""
        return self._added

    def _added_since(self, bookmark: Bookmark) -> Added:
        before = dict(bookmark).get(_COLUMNS)
        if before is None:
            return NOTHING_ADDED  # It was noted by an earlier release.
        columns = frozenset(self._table.columns.names)
        return Added(columns.difference(column_names(before)), columns)

    def require_same_order(self, bookmark: Bookmark) -> None:
        _require_of_delta(bookmark)
        began, now = noted(bookmark, _KEY), self._table.order
        if began != now:
            raise SchemaChangedError(
                f"keyColumns are ({now}) in the Delta table {self._uri} and were ({began}) when the stream began, so "
                "rows are in another order, and it is no longer known which have been read. Set keyColumns, or the "
                f"types of these columns, back; or start over with {FRESH_START}"
            )

    def require_same_key(self, bookmark: Bookmark) -> None:
        _require_of_delta(bookmark)
        began, now = noted(bookmark, _KEY), self._table.order
        if key_columns(began) != key_columns(now):
            raise SchemaChangedError(
                f"keyColumns are ({now}) in the Delta table {self._uri} and were ({began}) when the stream began. Set "
                f"keyColumns back, or start over with {FRESH_START}"
            )

    def reordered(self, bookmark: Bookmark) -> Bookmark:
        return renewed(bookmark, ((_KEY, self._table.order),))

    def is_own(self, bookmark: Bookmark, stream: str) -> bool:
        return noted(bookmark, "stream") == stream

    def detach(self, bookmark: Bookmark) -> tuple[str, ...]:  # noqa: ARG002 - nothing to find
        """Removes nothing, because nothing was made."""
        return ()

    def acknowledge(self, epoch: Epoch) -> None:
        """Forgets earlier commits in memory alone: how long a table keeps its versions is its own business."""
        self._history.log.forget_before(_version(epoch))

    # -- epochs ----------------------------------------------------------------------------------------------------

    def present(self) -> str:
        return str(self._latest.head().position)

    def reached(self, epoch: Epoch, position: str) -> bool:
        return Position.parse(epoch.position).version >= Position.parse(position).version

    def has_gap_after(self, epoch: Epoch) -> bool:  # noqa: ARG002 - the same for each
        """What is lost lies before the latest version, at which there is an epoch in any case."""
        return False

    def snapshot_epoch(self, after: Epoch | None, *, max_changes: int) -> Step:
        upto = self._latest.head_after(after).position.version
        end = self._cut(after, upto, max_changes)
        return self._step(after, end, pinned=end >= upto)

    def log_epoch(self, after: Epoch | None, *, max_changes: int, until: str | None) -> Step:
        latest = self._latest.head_after(after).position.version
        upto = latest if until is None else min(latest, Position.parse(until).version)
        return self._step(after, self._cut(after, upto, max_changes), pinned=False)

    def held_epoch(self, after: Epoch | None, *, max_changes: int) -> Step:
        return self.log_epoch(after, max_changes=max_changes, until=None)

    def _cut(self, after: Epoch | None, upto: int, max_changes: int) -> int:
        return upto if after is None else self._history.cut(_version(after), upto, max_changes)

    def _step(self, after: Epoch | None, version: int, *, pinned: bool) -> Step:
        position = self._table.position(version)
        if after is not None and not pinned and Position.parse(after.position) == position:
            return Step(after, None)
        epoch = Epoch(1 if after is None else after.number + 1, str(position), version, self._timestamp(version, after))
        self._latest.require_still()
        return Step(epoch, Pin(epoch, str(position)) if pinned else None)

    def _timestamp(self, version: int, after: Epoch | None) -> int:
        taken = self._history.timestamp(version)
        if taken is not None:
            return taken
        return time.time_ns() // 1000 if after is None else after.timestamp

    def repin(self, after: Epoch) -> Pin:
        """The same state again."""
        return Pin(after, after.position)

    def release(self, pin: Pin) -> None:
        """A version is there as long as the table keeps it."""

    def lookup(self, pin: Pin, keys: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        return self.reader().lookup(pin.token, keys)

    def measure(self, pin: Pin, requests: Sequence[Measure]) -> tuple[Extent, ...]:
        """Reads the key columns of the files that may hold such keys."""
        if not requests:
            return ()
        position, only = Position.parse(pin.token), self._options.stream.snapshot_filter
        try:
            opened = self._latest.at(position)
            with reading(self._uri, str(position.version), REPAIR):
                return measured(opened, self._table.key, requests, only)
        except DataLossError as error:
            if self._latest.head().position == position:
                raise
            # It was the latest just now, and no batch has been logged that is to be read at it.
            raise SnapshotGoneError(f"the version at which the batch was to end was lost: {error}") from None

    # -- changes ---------------------------------------------------------------------------------------------------

    def changes(self, after: Epoch, upto: Epoch) -> Iterator[pa.RecordBatch]:
        return self._history.changes(_version(after), _version(upto), lambda: self._require_planned(upto))

    def _require_planned(self, upto: Epoch) -> None:
        """Raises where the commits that were read are not those that a batch up to this epoch was planned with."""
        self._latest.require_still()
        with translating(self._uri):
            found = self._history.log.commit(_version(upto))
        if found is not None:
            require_same_commit(found, self._uri, upto.timestamp)

    def shown(self, position: str, changes: pa.RecordBatch) -> pa.BooleanArray:
        versions = changes["version"].to_numpy().astype(np.int64)
        return pa.array(versions <= Position.parse(position).version)

    # -- lag -------------------------------------------------------------------------------------------------------

    def lag(self, epoch: Epoch) -> Lag:
        return self._lately.lag(epoch.position, lambda: self._lag_of(Position.parse(epoch.position)))

    def lag_of(self, bookmark: Bookmark, epoch: Epoch | None) -> Lag:  # noqa: ARG002 - one log for all
        if epoch is None:
            return UNKNOWN
        reached, latest = Position.parse(epoch.position), self._latest.head()
        require_same_table(latest.table, self._uri, reached.table_id)
        require_not_older(latest.table, self._uri, reached)
        if latest.position.version > reached.version:
            self._history.require_kept(reached.version + 1)
        return self._lag_of(reached)

    def _lag_of(self, reached: Position) -> Lag:
        """How many versions are to be read, how large the files with their changes are, and since when they wait."""
        log, latest = self._history.log, self._latest.head().position
        now = self._latest.looked_at
        unread = range(reached.version + 1, latest.version + 1)
        with translating(self._uri):
            complete_until: int | None = now
            if unread:
                waiting_since = self._history.timestamp(unread[0])  # Not known where the log was cleaned up.
                complete_until = None if waiting_since is None else min(now, waiting_since - 1)
            return Lag(
                complete_until=complete_until,
                lag_seconds=None if complete_until is None else (now - complete_until) // 1_000_000,
                lag_bytes=log.size(unread) if len(unread) <= MOST_COUNTED else None,
                lag_versions=len(unread),
            )

    def close(self) -> None:
        """Nothing is held open."""


def _version(epoch: Epoch) -> int:
    return Position.parse(epoch.position).version


def _require_of_delta(bookmark: Bookmark) -> None:
    if "slot" in dict(bookmark):
        raise OptionsError(
            "the checkpoint belongs to a table of PostgreSQL, and path names a Delta table; name the former with url "
            "and dbtable, or use a fresh checkpointLocation"
        )
