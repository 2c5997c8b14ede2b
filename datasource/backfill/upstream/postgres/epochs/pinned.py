"""Epochs that readers are pinned to: exported states of the database."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from backfill.epoch import Epoch
from backfill.errors import OtherServerError, TransientError
from backfill.upstream import Pin, Step
from backfill.upstream.postgres.changes.log import MOST_MESSAGES, Stretch
from backfill.upstream.postgres.epochs.reading import Reading
from backfill.upstream.postgres.position import Position
from backfill.upstream.postgres.replication import unseen
from backfill.upstream.postgres.snapshot.pin import ExportedSnapshot, ExportingSession
from backfill.upstream.postgres.tables.still_same import require_unchanged
from backfill.upstream.postgres.tables.table import Table
from backfill.wording import FRESH_START

logger = logging.getLogger("backfill")


class PinnedEpochs:
    """Takes the present state as the next epoch. A stream that follows no log asks for the first one only."""

    def __init__(self, reading: Reading, exporter: ExportingSession, table: Table) -> None:
        self._reading = reading
        self._exporter = exporter
        self._table = table
        self._logged_unseen = False

    def step(self, after: Epoch | None, max_changes: int) -> Step | None:
        """The present state, pinned; or, if too much has happened since `after`, a part of the way to it, not pinned.

        None where `after` shows a commit that readers do not see yet, as an epoch by LSN alone may. A commit becomes
        visible a moment after it was logged: this waits that long, but not for a standby.
        """
        give_up = time.monotonic() + (0 if self._logged_unseen else unseen.PATIENCE)
        while (step := self._exported_step(after, max_changes)) is None and time.monotonic() <= give_up:
            time.sleep(unseen.INTERVAL)
        if step is None and not self._logged_unseen:
            logger.warning(
                "rows are not read again yet: readers do not see a commit yet that was passed on, as while a "
                "synchronous standby does not answer"
            )
        self._logged_unseen = step is None
        return step

    def _exported_step(self, after: Epoch | None, max_changes: int) -> Step | None:
        """As `step`, without waiting: None where `after` shows what readers do not see yet."""
        reading = self._reading
        if after is None:
            exported = self._export(None)
            epoch = reading.first(exported.position, exported.timestamp)
            return Step(epoch, Pin(epoch, exported.token))
        began = Position.parse(after.position)
        exported = self._export(began)
        now, taken = exported.position, exported.timestamp
        peeked = reading.read(Stretch(began, now, now.lsn), max_changes)
        if not peeked.sees_all(now):
            self._exporter.release(exported.token)
            peeked.rows.close()
            return None
        if not peeked.complete:
            self._exporter.release(exported.token)
            # A state of the past, with the time of its last commit: how far behind a stream is that stops here.
            return Step(reading.led(after, replace(now, lsn=peeked.end), peeked, taken), None)
        epoch = reading.led(after, now, peeked, taken, taken)
        return Step(epoch, Pin(epoch, exported.token))

    def later(self, before: Position) -> ExportedSnapshot:
        """The present state, which shows all that `before` does; TransientError where readers do not see that yet."""
        exported = self._export(before)
        if not self._sees_all(before, exported.position):
            raise TransientError(
                "readers do not see a commit of the batch yet, as while a synchronous standby does not answer. Start "
                "the standby, or take it out of synchronous_standby_names, and start the query again. With "
                "startupMode=snapshot, the server may also be a standby that was promoted without that commit, or "
                f"have been restored to before it: then start over with {FRESH_START}"
            )
        return exported

    def _export(self, before: Position | None) -> ExportedSnapshot:
        """The present state. The sink may have something of the state `before`, which the log has to have then."""
        reading = self._reading
        if before is not None and reading.is_attached:
            reading.log.has_reached(before)
        try:
            exported = self._exporter.export(reading.log.place.log if reading.is_attached else None)
        except OtherServerError:
            reading.log.require_same_log(reading.session)
            raise
        # The collations that the key is ordered by.
        collations = reading.log.baseline.collations if reading.is_attached else self._table.collations
        require_unchanged(exported.session, self._table, collations)
        return exported

    def _sees_all(self, before: Position, now: Position) -> bool:
        """Whether readers of `now` see all that `before` shows.

        If `before` is an LSN alone, and not all before it was visible then, the log has to be read to know.
        """
        if before.snapshot is not None:
            return now.shows_all_of(before)
        if before.unseen is None:
            return now.lsn >= before.lsn
        peeked = self._reading.read(Stretch(before, before, before.lsn), MOST_MESSAGES)  # which wants no change
        peeked.rows.close()
        return now.lsn >= before.lsn and peeked.sees_all(now)
