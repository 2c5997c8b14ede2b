"""PostgreSQL behind the `Upstream` contract."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backfill.arrow.order import within
from backfill.epoch import Epoch
from backfill.errors import ConnectionLostError, SnapshotGoneError, TableLockedError
from backfill.options import Options
from backfill.plan import Extent, Measure
from backfill.upstream import Bookmark, Identity, Pin, Step, TableSchema
from backfill.upstream.added import Added
from backfill.upstream.lag import Lag
from backfill.upstream.noted import renewed
from backfill.upstream.postgres.changes import span
from backfill.upstream.postgres.changes.changelog import ChangeLog
from backfill.upstream.postgres.changes.log import MOST_MESSAGES, Stretch
from backfill.upstream.postgres.changes.span import PostgresChangeReader
from backfill.upstream.postgres.epochs.steps import Epochs
from backfill.upstream.postgres.position import Position
from backfill.upstream.postgres.replication import slot
from backfill.upstream.postgres.replication.place import Place
from backfill.upstream.postgres.session.connection import Connector, Session
from backfill.upstream.postgres.session.retries import RetryPolicy
from backfill.upstream.postgres.session.server import (
    require_countable,
    require_lasting_snapshots,
    require_logical,
    require_primary,
)
from backfill.upstream.postgres.session.sessions import ControlSession
from backfill.upstream.postgres.snapshot.key_space import covered_by_database, cut, range_of
from backfill.upstream.postgres.snapshot.measuring import Measuring
from backfill.upstream.postgres.snapshot.reader import PostgresSnapshotReader
from backfill.upstream.postgres.tables.baseline import Baseline
from backfill.upstream.postgres.tables.size import StoredSize, read_size
from backfill.upstream.postgres.tables.table import Table, describe
from backfill.upstream.recent_lag import RecentLag
from backfill.vnode import WHOLE_TABLE, Coverage, Key, KeyRange


class PostgresUpstream:
    """One table of one database. Opens its sessions when they are needed, and again when they were lost."""

    name = "postgresql"

    def __init__(self, options: Options, retries: RetryPolicy | None = None) -> None:
        self._options = options
        self._connector = Connector.of_options(options)
        self._sessions = ControlSession(self._connector, retries or RetryPolicy())
        self._sized: StoredSize | None = None
        """The table's size when it was last asked for, which is before each batch that reads rows."""

        self._opened: Epochs | None = None
        self._lately = RecentLag()

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
        self._sessions.close()

    # -- the table -------------------------------------------------------------------------------------------------

    @cached_property
    def _table(self) -> Table:
        return self._sessions.run(lambda session: describe(session, self._options))

    def schema(self) -> TableSchema:
        return self._table.schema

    def reader(self) -> PostgresSnapshotReader:
        return self._reader(self._connector.for_rows())

    def _reader(self, connector: Connector) -> PostgresSnapshotReader:
        table = self._table
        return PostgresSnapshotReader(
            connector,
            table.keyed,
            table.columns,
            self._sessions.retries,
            filter=self._options.filter,
            snapshot_filter=self._options.stream.snapshot_filter,
        )

    def span(self, starting: str, ending: str) -> PostgresChangeReader:
        table = self._table
        require_primary(table.server)
        require_logical(table.server)
        place = Place.given(self._options, table)
        end = self._epochs.present().lsn
        after, upto = self._sessions.run(lambda session: span.resolved(session, place, table, end, starting, ending))
        return PostgresChangeReader(self._connector.for_rows(), table, place, self._sessions.retries, after, upto)

    def identity(self) -> Identity:
        table = self._table
        name = table.description.name.quoted()
        return Identity(str(table.server.system_identifier), name, str(table.description.oid))

    def size(self) -> StoredSize:
        """The size of this moment: since the process began the table may have become many times as large."""
        described = self._table.description
        self._sized = self._sessions.run(lambda session: read_size(session, described))
        return self._sized

    def typed(self, keys: Sequence[Key]) -> pa.RecordBatch:
        return self._table.typed(keys)

    def covered(self, keys: pa.RecordBatch, coverage: Coverage) -> pa.Array[Any]:
        table = self._table
        if not table.ordered_locally:
            return self._sessions.run(lambda session: covered_by_database(session, table.keyed, keys, coverage))
        found = pa.repeat(pa.scalar(False), keys.num_rows)
        for item in coverage:
            ends = [None if end is None else table.typed([end]) for end in (item.after, item.upto)]
            found = pc.or_(found, within(keys, ends[0], ends[1]))
        return found

    def bounds(self, vnodes: int, within: KeyRange = WHOLE_TABLE) -> tuple[Key, ...]:
        size = self.size()
        return self._sessions.run(lambda session: cut(session, self._table.keyed, vnodes, size, within))

    def range_of(self, first: Key | None, last: Key | None) -> KeyRange:
        return self._sessions.run(lambda session: range_of(session, self._table.keyed, first, last))

    # -- the place in the change log -------------------------------------------------------------------------------

    def bookmark(self, stream: str) -> Bookmark:
        place = Place.of_stream(stream, self._options, self._table)
        if not place.own_publication:
            place = self._sessions.run(lambda session: place.accepting_publication(session, self._table))
        return (*place.names, *self._keeping(Baseline.with_table(self._table)).names)

    def attach(self, bookmark: Bookmark, after: Epoch | None, ahead: Collection[str] = ()) -> Bookmark:
        table, place, baseline = self._table, Place.of(bookmark), Baseline.of(bookmark)
        require_lasting_snapshots(table.server)
        place.require_named(self._options)
        if after is not None:
            baseline.require_same_table(table)
            baseline.require_same_filter(table)
            baseline = self._keeping(baseline)
        log = ChangeLog(self._connector, self._options, table, place, baseline)
        for item in ahead:
            log.has_reached(Position.parse(item))
        self._epochs.attach(log)
        require_logical(table.server)
        if after is None:
            self._sessions.run(log.begin_place)
        else:
            self._sessions.run(lambda session: log.find_place(session, Position.parse(after.position)))
            log.report_carried()
        return renewed(bookmark, (*log.place.names, *baseline.started(table).names))

    def _keeping(self, baseline: Baseline) -> Baseline:
        return baseline if self._options.stream.last_rows is None else baseline.keeping(self._table)

    def added(self) -> Added:
        return self._epochs.log.added

    def require_same_order(self, bookmark: Bookmark) -> None:
        self._begun(bookmark).require_same_order(self._table)

    def require_same_key(self, bookmark: Bookmark) -> None:
        self._begun(bookmark).require_same_key(self._table)

    def reordered(self, bookmark: Bookmark) -> Bookmark:
        return renewed(bookmark, self._begun(bookmark).reordered(self._table).names)

    def _begun(self, bookmark: Bookmark) -> Baseline:
        """How this table was when the stream began. Raises where that was another one, whose key order says nothing."""
        Place.of(bookmark)  # Raises where it is not of a table of PostgreSQL.
        baseline = Baseline.of(bookmark)
        baseline.require_same_table(self._table)
        return baseline

    def is_own(self, bookmark: Bookmark, stream: str) -> bool:
        return stream in Place.of(bookmark).slot

    def detach(self, bookmark: Bookmark) -> tuple[str, ...]:
        return self._sessions.run(Place.of(bookmark).drop)

    # -- epochs ----------------------------------------------------------------------------------------------------

    @property
    def _epochs(self) -> Epochs:
        if self._opened is None:
            require_primary(self._table.server)
            require_countable(self._table.server)
            self._sessions.needs_primary = True
            self._opened = Epochs(self._connector, self._sessions, self._table)
        return self._opened

    def present(self) -> str:
        return str(self._epochs.present())

    def reached(self, epoch: Epoch, position: str) -> bool:
        return Position.parse(epoch.position).shows_all_of(Position.parse(position))

    def has_gap_after(self, epoch: Epoch) -> bool:
        return self._epochs.log.has_gap_after(Position.parse(epoch.position))

    def snapshot_epoch(self, after: Epoch | None, *, max_changes: int) -> Step:
        require_lasting_snapshots(self._table.server)
        return self._epochs.snapshot_epoch(after, max_changes)

    def log_epoch(self, after: Epoch | None, *, max_changes: int, until: str | None) -> Step:
        return self._epochs.log_epoch(after, max_changes, until)

    def held_epoch(self, after: Epoch | None, *, max_changes: int) -> Step:
        return self._epochs.held_epoch(after, max_changes)

    # -- changes ---------------------------------------------------------------------------------------------------

    def changes(self, after: Epoch, upto: Epoch) -> Iterator[pa.RecordBatch]:
        yield from self._epochs.log.kept.between(after, upto) or self._read_again(after, upto)

    def _read_again(self, after: Epoch, upto: Epoch) -> Iterator[pa.RecordBatch]:
        log, shown = self._epochs.log, Position.parse(upto.position)
        stretch = Stretch(Position.parse(after.position), shown, shown.lsn)
        found = self._sessions.run(lambda session: log.read(session, stretch, MOST_MESSAGES))
        log.kept.keep(upto, found)
        return iter(found.rows)

    def shown(self, position: str, changes: pa.RecordBatch) -> pa.BooleanArray:
        xids = changes["commit_id"].to_numpy().astype(np.uint32)
        lsns = changes["version"].to_numpy().astype(np.uint64)
        return pa.array(Position.parse(position).shows(xids, lsns))

    def acknowledge(self, epoch: Epoch) -> None:
        log = self._epochs.log
        to = log.kept.committed(epoch)
        if to:
            log.expected.slot_moves()
            self._sessions.run(lambda session: slot.advance(session, log.place.slot, to))

    # -- snapshot rows ---------------------------------------------------------------------------------------------

    def repin(self, after: Epoch) -> Pin:
        require_lasting_snapshots(self._table.server)
        return self._epochs.repin(after)

    def release(self, pin: Pin) -> None:
        self._epochs.exporter.release(pin.token)

    def lookup(self, pin: Pin, keys: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        return self._reader(self._connector).lookup(pin.token, keys)

    def measure(self, pin: Pin, requests: Sequence[Measure]) -> tuple[Extent, ...]:
        stream, exporter = self._options.stream, self._epochs.exporter
        state = exporter.held(pin.token)
        measuring = Measuring(exporter, state, stream.snapshot_filter, stream.num_partitions)
        try:
            return measuring.measure(requests, (self._sized or self.size()).row_count)
        except (ConnectionLostError, TableLockedError) as error:
            raise SnapshotGoneError(f"the snapshot at which the batch was to end was lost: {error}") from None

    # -- lag -------------------------------------------------------------------------------------------------------

    def lag(self, epoch: Epoch) -> Lag:
        epochs, reached = self._epochs, Position.parse(epoch.position)
        if reached.lsn < epochs.searched_upto:
            reached = Position(epochs.searched_upto)

        def look(session: Session) -> Lag:
            return slot.lag(session, epochs.log.place.slot, reached, epochs.complete_until or None)

        return self._lately.lag(epoch.position, lambda: self._sessions.run(look))

    def lag_of(self, bookmark: Bookmark, epoch: Epoch | None) -> Lag:
        place, reached, complete_until = Place.of(bookmark), None, None
        if epoch is not None:
            reached, complete_until = Position.parse(epoch.position), epoch.timestamp

        def look(session: Session) -> Lag:
            place.require_kept(self._connector, session, None if reached is None else reached.lsn)
            return slot.lag(session, place.slot, reached, complete_until)

        return self._sessions.run(look)
