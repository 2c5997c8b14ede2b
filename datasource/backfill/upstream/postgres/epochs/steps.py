"""From one epoch to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from backfill.epoch import Epoch
from backfill.upstream import Pin, Step
from backfill.upstream.postgres.changes.changelog import ChangeLog
from backfill.upstream.postgres.epochs.followed import FollowedEpochs
from backfill.upstream.postgres.epochs.pinned import PinnedEpochs
from backfill.upstream.postgres.epochs.reading import Reading
from backfill.upstream.postgres.position import Lsn, Position
from backfill.upstream.postgres.replication.timelines import FIRST
from backfill.upstream.postgres.session.connection import Connector
from backfill.upstream.postgres.session.sessions import ControlSession
from backfill.upstream.postgres.snapshot.pin import ExportingSession
from backfill.upstream.postgres.tables.table import Table


class Epochs:
    """Finds the next epoch, trying again where sessions are lost, and holds the state that it pins."""

    def __init__(self, connector: Connector, sessions: ControlSession, table: Table) -> None:
        self._sessions = sessions
        self._reading = Reading(connector, sessions)
        self.exporter = ExportingSession(connector, table.keyed)
        self._pinned = PinnedEpochs(self._reading, self.exporter, table)
        self._followed = FollowedEpochs(self._reading)

    def attach(self, log: ChangeLog) -> None:
        self._reading.attach(log)

    def close(self) -> None:
        self.exporter.close()
        if self.is_attached:
            self.log.kept.let_go()

    @property
    def log(self) -> ChangeLog:
        return self._reading.log

    @property
    def is_attached(self) -> bool:
        return self._reading.is_attached

    @property
    def complete_until(self) -> int:
        """See `Reading`."""
        return self._reading.complete_until

    @property
    def searched_upto(self) -> Lsn:
        """The LSN up to which the log was read: what lies before it and had nothing for the stream is no lag."""
        return self._followed.searched.upto

    def present(self) -> Position:
        """The position of the present state, once all of it has been flushed to the log."""
        return self._sessions.run(self._reading.look)

    def snapshot_epoch(self, after: Epoch | None, max_changes: int) -> Step:
        """See `Upstream.snapshot_epoch`. While readers do not see all that `after` shows, the log is followed alone."""
        return self._stepped(lambda: self._pinned.step(after, max_changes) or self._logged(after, max_changes, None))

    def log_epoch(self, after: Epoch | None, max_changes: int, until: str | None) -> Step:
        """See `Upstream.log_epoch`."""
        return self._stepped(lambda: self._logged(after, max_changes, until))

    def held_epoch(self, after: Epoch | None, max_changes: int) -> Step:
        """See `Upstream.held_epoch`."""
        return self._stepped(lambda: self._unpinned(lambda: self._followed.held(after, max_changes)))

    def repin(self, after: Epoch) -> Pin:
        """See `Upstream.repin`."""
        before = Position.parse(after.position)
        with self._released_on_error():
            exported = self._sessions.retry(lambda: self._pinned.later(before))
        position = exported.position
        if self.is_attached:
            timeline = self.log.place.log.timeline
            position = replace(position, timeline="" if timeline == FIRST else timeline)
            self.log.has_reached(position)
        epoch = Epoch(after.number, str(position), position.lsn, exported.timestamp)
        return Pin(epoch, exported.token)

    def _logged(self, after: Epoch | None, max_changes: int, until: str | None) -> Step:
        return self._unpinned(lambda: self._followed.logged(after, max_changes, until))

    def _unpinned(self, found: Callable[[], Epoch]) -> Step:
        """A step to an epoch for which no state is held; any pin is released before."""
        self.exporter.close()
        return Step(found(), None)

    def _stepped(self, step: Callable[[], Step]) -> Step:
        with self._released_on_error():
            return self._sessions.retry(step)

    @contextmanager
    def _released_on_error(self) -> Iterator[None]:
        """Lets go of the state that the body has exported, if it fails: nobody has its pin by then."""
        try:
            yield
        except BaseException:
            self.exporter.close()
            raise
