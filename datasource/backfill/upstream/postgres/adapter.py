"""PostgreSQL behind the `Upstream` contract."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from backfill.epoch import Epoch
from backfill.errors import (
    ConnectionLostError,
    DataLossError,
    SnapshotGoneError,
    TransientError,
)
from backfill.options import Options
from backfill.order import within
from backfill.plan import Extent, Request
from backfill.upstream import Bookmark, Identity, Pin, Step, TableSchema, TableSize
from backfill.upstream.postgres import slot, span
from backfill.upstream.postgres.changelog import ChangeLog
from backfill.upstream.postgres.connection import Connector
from backfill.upstream.postgres.failures import RetryPolicy, translating
from backfill.upstream.postgres.log import MOST_MESSAGES, Reading
from backfill.upstream.postgres.pin import Exported, ExportingSession, wait_for_flush
from backfill.upstream.postgres.place import Place
from backfill.upstream.postgres.position import Position, Snapshot, parse_lsn
from backfill.upstream.postgres.reader import PostgresSnapshotReader
from backfill.upstream.postgres.server import require_logical, require_primary
from backfill.upstream.postgres.span import PostgresChangeReader
from backfill.upstream.postgres.table import (
    Table,
    covered_by_database,
    cut,
    describe,
    measure,
    prepare_for_ranges,
    range_of,
    require_unchanged,
)
from backfill.vnode import WHOLE_TABLE, Coverage, Key, KeyRange

logger = logging.getLogger("backfill")

T = TypeVar("T")
Session = psycopg.Connection[tuple[Any, ...]]

HEARTBEAT_BYTES: Final = 16 << 20
"""How far the log may grow without anything for us before an empty batch lets the slot follow."""

UNSEEN_PATIENCE: Final = 1.0
"""Seconds within which a commit that is logged becomes visible, unless it waits for a standby."""

UNSEEN_INTERVAL: Final = 0.02

LAG_INTERVAL: Final = 1.0
"""Seconds for which the figures for whoever watches are not asked for again."""

CLOCK: Final = sql.SQL("(extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
"""The time by the server's clock, in microseconds since 1970."""

EVERY_COMMIT: Final = Position((1 << 63) - 1)


class PostgresUpstream:
    """One table of one database. Opens its sessions when they are needed, and again when they were lost."""

    name = "postgresql"

    def __init__(self, options: Options, connector: Connector, retries: RetryPolicy) -> None:
        self._options = options
        self._connector = connector
        self._retries = retries
        self._control: Session | None = None
        self._described: Table | None = None
        self._exporter: ExportingSession | None = None
        self._attached: tuple[Place, ChangeLog] | None = None
        self._idle_at = 0
        self._held_at: Position | None = None
        self._said_unseen = False
        self._reached = 0
        self._clock = 0
        self._complete_until = 0
        self._lag: tuple[float, dict[str, int]] = (-LAG_INTERVAL, {})

    @classmethod
    def of(cls, options: Options, retries: RetryPolicy | None = None) -> PostgresUpstream:
        connector = Connector.of(
            options.url,
            user=options.user,
            password=options.password,
            init_statement=options.session_init_statement,
        )
        return cls(options, connector, retries or RetryPolicy())

    # -- sessions --------------------------------------------------------------------------------------------------

    def _session(self) -> Session:
        if self._control is None or self._control.closed:
            self._control = self._connector.session()
        return self._control

    def _forget_session(self) -> None:
        if self._control is not None:
            self._control.close()
        self._control = None

    def _do(self, operation: Callable[[Session], T]) -> T:
        """The operation's result, tried again in a new session while its errors are transient."""
        return self._retries.run(lambda: operation(self._session()), self._forget_session)

    def close(self) -> None:
        if self._exporter is not None:
            self._exporter.close()
        self._forget_session()

    # -- the table -------------------------------------------------------------------------------------------------

    @property
    def _table(self) -> Table:
        if self._described is None:
            self._described = self._do(lambda session: describe(session, self._options))
        return self._described

    def schema(self) -> TableSchema:
        return self._table.schema

    def reader(self) -> PostgresSnapshotReader:
        table = self._table
        return PostgresSnapshotReader(
            self._connector,
            table.keyed,
            table.columns,
            self._retries,
            filter=self._options.filter,
            snapshot_filter=self._options.stream.snapshot_filter,
        )

    def span(self, starting: str, ending: str) -> PostgresChangeReader:
        table = self._table
        require_primary(table.server)
        require_logical(table.server)
        place = Place.given(self._options, table)
        self._do(lambda session: place.require_published(session, table))
        after, upto = self._do(lambda session: span.bounds(session, place, self._end_of_log().lsn, starting, ending))
        return PostgresChangeReader(self._connector, table, place, self._retries, after, upto)

    def identity(self) -> Identity:
        table = self._table
        name = table.description.name.quoted()
        return Identity(str(table.server.system_identifier), name, str(table.description.oid))

    def size(self) -> TableSize:
        described = self._table.description
        rows = max(1, described.estimated_rows)
        return TableSize(rows, max(1, described.estimated_bytes // rows))

    def typed(self, keys: Sequence[Key]) -> pa.RecordBatch:
        return self._table.typed(keys)

    def covered(self, keys: pa.RecordBatch, coverage: Coverage) -> pa.Array[Any]:
        table = self._table
        if not table.ordered_locally:
            return self._do(lambda session: covered_by_database(session, table.keyed, keys, coverage))
        found = pa.repeat(pa.scalar(False), keys.num_rows)
        for item in coverage:
            ends = [None if end is None else table.typed([end]) for end in (item.after, item.upto)]
            found = pc.or_(found, within(keys, ends[0], ends[1]))
        return found

    def bounds(self, vnodes: int, within: KeyRange = WHOLE_TABLE) -> tuple[Key, ...]:
        return self._do(lambda session: cut(session, self._table.keyed, vnodes, self.size(), within))

    def range_of(self, first: Key | None, last: Key | None) -> KeyRange:
        return self._do(lambda session: range_of(session, self._table.keyed, first, last))

    # -- the place in the change log -------------------------------------------------------------------------------

    def bookmark(self, stream: str) -> Bookmark:
        return Place.of_stream(stream, self._options, self._table).bookmark

    def attach(self, bookmark: Bookmark, after: Epoch | None) -> None:
        table, place = self._table, Place.of(bookmark)
        self._attached = place, ChangeLog(self._connector, self._options, table, place)
        require_primary(table.server)
        require_logical(table.server)
        if after is None:
            self._do(lambda session: place.make(self._connector, session, table))
        else:
            self._do(lambda session: self._find(session, Position.parse(after.position)))

    def _find(self, session: Session, after: Position) -> None:
        place = self._place
        try:
            place.require_readable(session, after.lsn)
            place.require_same_publication(session, self._table)
        except DataLossError as error:
            if self._options.fail_on_data_loss:
                raise
            logger.error("going on although changes were lost, as failOnDataLoss=false asks: %s", error)  # noqa: TRY400
            slot.drop_if_lost(session, place.slot, place.publication if place.own_publication else None)
            place.make(self._connector, session, self._table)
            place.accept_publication(session, self._table)

    @property
    def _place(self) -> Place:
        return self._require_attached()[0]

    @property
    def _log(self) -> ChangeLog:
        return self._require_attached()[1]

    def _require_attached(self) -> tuple[Place, ChangeLog]:
        if self._attached is None:
            raise RuntimeError("attach comes before everything that concerns the change log")
        return self._attached

    def detach(self, bookmark: Bookmark) -> None:
        self._do(Place.of(bookmark).drop)

    # -- epochs ----------------------------------------------------------------------------------------------------

    def present(self) -> str:
        return str(self._do(self._present))

    def _present(self, session: Session) -> Position:
        position = self._position_now(session)
        wait_for_flush(session, self._connector, position.lsn)
        return position

    def _position_now(self, session: Session) -> Position:
        row = session.execute(
            sql.SQL("SELECT {}, pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text").format(CLOCK)
        ).fetchone()
        if row is None:
            raise TransientError("the server did not say where its log ends")
        self._clock = row[0]
        return Position(parse_lsn(row[2]), Snapshot.parse(row[1]))

    def reached(self, epoch: Epoch, position: str) -> bool:
        return Position.parse(epoch.position).shows_all_of(Position.parse(position))

    def next_epoch(self, after: Epoch | None, *, snapshot: bool, max_changes: int, until: str | None) -> Step:
        if snapshot:
            return self._stepped(lambda: self._readable_epoch(after, max_changes))
        return self._unpinned(lambda: self._log_epoch(after, max_changes, until))

    def held_epoch(self, after: Epoch | None, *, max_changes: int) -> Step:
        return self._unpinned(lambda: self._held_epoch(after, max_changes))

    def _unpinned(self, step: Callable[[], Step]) -> Step:
        def released() -> Step:
            if self._exporter is not None:
                self._exporter.close()
            return step()

        return self._stepped(released)

    def _stepped(self, step: Callable[[], Step]) -> Step:
        found = self._retries.run(step, self._forget_session)
        self._reached = Position.parse(found.epoch.position).lsn
        return found

    def _readable_epoch(self, after: Epoch | None, max_changes: int) -> Step:
        """The state of now, pinned; or, if too much has happened since `after`, a part of the way to it.

        An epoch by LSN alone may show commits that nobody sees yet. They are made visible one moment after they were
        logged, unless they wait for a standby: then changes are followed on, and rows are read when they are seen.
        """
        give_up = time.monotonic() + UNSEEN_PATIENCE
        while True:
            step = self._exported_step(after, max_changes)
            if step is not None:
                self._said_unseen = False
                return step
            if after is None or time.monotonic() > give_up:
                break
            time.sleep(UNSEEN_INTERVAL)
        if not self._said_unseen:
            logger.warning(
                "rows are not read again yet: a commit that was passed on is still invisible to readers, as while a "
                "synchronous standby does not answer"
            )
        self._said_unseen = True
        return self._log_epoch(after, max_changes, None)

    def _exported_step(self, after: Epoch | None, max_changes: int) -> Step | None:
        """None where `after` shows what no reader sees yet."""
        exporter = self._exporting()
        exported = exporter.export()
        require_unchanged(exporter.current(), self._table, self._collations)
        prepare_for_ranges(exporter.current())
        number = 1 if after is None else after.number + 1
        epoch = _exported_epoch(number, exported)
        self._complete_until = exported.timestamp
        if after is not None:
            upto = exported.position.lsn
            reading = self._read(Position.parse(after.position), exported.position, upto, max_changes)
            if not reading.sees_all(Position.parse(after.position), exported.position):
                exporter.release(exported.token)
                reading.rows.close()
                return None
            if not reading.complete:
                exporter.release(exported.token)
                epoch = _exported_epoch(number, replace(exported, position=replace(exported.position, lsn=reading.end)))
                self._complete_until = reading.timestamp or after.timestamp
            self._log.keep(after, epoch, reading, upto)
            if not reading.complete:
                return Step(epoch, None)
        return Step(epoch, Pin(epoch, exported.token))

    @property
    def _collations(self) -> str:
        """What the order of the key was when the stream began."""
        return (self._attached[0].collations if self._attached else "") or self._table.collations

    def _exporting(self) -> ExportingSession:
        if self._exporter is None:
            require_primary(self._table.server)
            self._exporter = ExportingSession(self._connector, self._table.keyed)
        return self._exporter

    def _log_epoch(self, after: Epoch | None, max_changes: int, until: str | None) -> Step:
        """The next commits in the log, whether visible yet or not: no snapshot rows are read any more."""
        if after is None:
            now = self._present(self._session())
            self._complete_until = self._clock
            # What was visible is known when the log has been read.
            return Step(Epoch(1, str(Position(now.lsn, unseen=0)), now.lsn, self._clock), None)
        began = Position.parse(after.position)
        seen = Position.parse(until) if until else self._end_of_log()
        upto = seen.lsn
        if upto < self._idle_at and not until and self._options.fail_on_data_loss:
            self._place.require_readable(self._session(), self._idle_at)
        if upto <= self._idle_at:
            self._complete_until = self._clock
            return Step(after, None)
        reading = self._read(began, EVERY_COMMIT, upto, max_changes)
        self._complete_until = self._clock if reading.complete else reading.timestamp or after.timestamp
        if reading.complete:
            self._idle_at = upto
        idle = reading.complete and reading.rows.row_count == 0
        if idle and upto - began.lsn < HEARTBEAT_BYTES:
            return Step(after, None)
        end = upto if idle else reading.end
        position = Position(max(end, began.lsn))
        seen_upto = reading.acknowledgeable(seen, upto)
        if seen_upto < position.lsn:
            position = replace(position, unseen=seen_upto)
        epoch = Epoch(after.number + 1, str(position), position.lsn, reading.timestamp or after.timestamp)
        self._log.keep(after, epoch, reading, upto)
        return Step(epoch, None)

    def _held_epoch(self, after: Epoch | None, max_changes: int) -> Step:
        """What is visible now, as far as the log is read: the snapshot that goes on later must see all of it."""
        if after is not None and Position.parse(after.position).snapshot is None:
            return self._log_epoch(after, max_changes, None)
        now = self._present(self._session())
        self._complete_until = self._clock
        if after is None:
            return Step(Epoch(1, str(now), now.lsn, self._clock), None)
        if now == self._held_at:
            return Step(after, None)
        began = Position.parse(after.position)
        reading = self._read(began, now, now.lsn, max_changes)
        if not reading.complete:
            self._complete_until = reading.timestamp or after.timestamp
        if reading.complete and reading.rows.row_count == 0:
            self._held_at = now
            if now.lsn - began.lsn < HEARTBEAT_BYTES:
                return Step(after, None)
        position = now if reading.complete else replace(now, lsn=reading.end)
        taken = max(reading.timestamp or 0, after.timestamp)
        epoch = Epoch(after.number + 1, str(position), position.lsn, taken)
        self._log.keep(after, epoch, reading, now.lsn)
        return Step(epoch, None)

    def _end_of_log(self) -> Position:
        """Up to where the log can be read: the end of a whole record, so that no commit is half before it."""
        session = self._session()
        now = self._position_now(session)
        if now.lsn > self._idle_at:
            wait_for_flush(session, self._connector, now.lsn)
        return now

    # -- changes ---------------------------------------------------------------------------------------------------

    def _read(self, after: Position, shown: Position, upto: int, limit: int) -> Reading:
        return self._log.read(self._session(), after, shown, upto, limit)

    def changes(self, after: Epoch | None, upto: Epoch) -> Iterator[pa.RecordBatch]:
        if after is None:
            return
        yield from self._log.kept(after, upto) or self._read_again(after, upto)

    def _read_again(self, after: Epoch, upto: Epoch) -> Iterator[pa.RecordBatch]:
        shown = Position.parse(upto.position)

        def attempt() -> Reading:
            return self._read(Position.parse(after.position), shown, shown.lsn, MOST_MESSAGES)

        found = self._retries.run(attempt, self._forget_session)
        self._log.keep(after, upto, found, shown.lsn)
        return iter(found.rows)

    def shown(self, position: str, changes: pa.RecordBatch) -> pa.BooleanArray:
        xids = changes["commit_id"].to_numpy().astype(np.uint32)
        lsns = changes["version"].to_numpy().astype(np.uint64)
        return pa.array(Position.parse(position).shows(xids, lsns))

    def acknowledge(self, epoch: Epoch) -> None:
        to = self._log.acknowledgeable(epoch)
        if to:
            self._do(lambda session: slot.advance(session, self._place.slot, to))

    # -- snapshot rows ---------------------------------------------------------------------------------------------

    def repin(self, after: Epoch) -> Pin:
        def attempt() -> Exported:
            exported = self._exporting().export()
            if not exported.position.shows_all_of(Position.parse(after.position)):
                raise TransientError("the server does not show yet what the batch had seen")
            return exported

        exported = self._retries.run(attempt, self._forget_session)
        return Pin(_exported_epoch(after.number, exported), exported.token)

    def release(self, pin: Pin) -> None:
        if self._exporter is not None:
            self._exporter.release(pin.token)

    def lookup(self, pin: Pin, keys: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        return self.reader().lookup(pin.token, keys)

    def measure(self, requests: Sequence[Request]) -> tuple[Extent, ...]:
        try:
            with translating(), self._exporting().looking() as session:
                return measure(session, self._table.keyed, requests, self._options.stream.snapshot_filter)
        except ConnectionLostError as error:
            raise SnapshotGoneError(f"the state the batch was to end at was lost: {error}") from None

    # -- figures ---------------------------------------------------------------------------------------------------

    def lag(self) -> dict[str, int]:
        taken, figures = self._lag
        if time.monotonic() - taken >= LAG_INTERVAL:
            figures = self._do(self._figures) if self._attached else {}
            self._lag = (time.monotonic(), figures)
        return figures

    def _figures(self, session: Session) -> dict[str, int]:
        # What was looked at and held nothing for us is no lag.
        reached, complete_until = max(self._reached, self._idle_at), self._complete_until
        if not complete_until:
            return slot.figures(session, self._place.slot, reached, None)
        found = slot.figures(session, self._place.slot, reached, complete_until)
        return {**found, "complete_until": complete_until}

    def lag_of(self, bookmark: Bookmark, epoch: Epoch | None) -> dict[str, int]:
        reached, complete_until = None, None
        if epoch is not None:
            reached, complete_until = Position.parse(epoch.position).lsn, epoch.timestamp
        return self._do(lambda session: slot.figures(session, Place.of(bookmark).slot, reached, complete_until))


def _exported_epoch(number: int, exported: Exported) -> Epoch:
    return Epoch(number, str(exported.position), exported.position.lsn, exported.timestamp)
