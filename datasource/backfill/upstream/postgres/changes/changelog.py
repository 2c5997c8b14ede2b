"""The changes of one table as its slot gives them, read once for the batch that is about to be planned."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from backfill.errors import ConnectionLostError, DataLossError, DefiniteError, OtherServerError
from backfill.options import Options
from backfill.upstream.added import Added
from backfill.upstream.postgres.changes import log
from backfill.upstream.postgres.changes.expected import ExpectedMessages
from backfill.upstream.postgres.changes.kept import KeptChanges
from backfill.upstream.postgres.changes.log import Stretch
from backfill.upstream.postgres.position import LOG_BEGIN, Lsn, Position
from backfill.upstream.postgres.replication import slot
from backfill.upstream.postgres.replication.own_log import OwnLog
from backfill.upstream.postgres.replication.place import Place
from backfill.upstream.postgres.replication.publication import Published
from backfill.upstream.postgres.replication.standbys import logging_awaited_standbys
from backfill.upstream.postgres.session.connection import Asked, Connector, Session
from backfill.upstream.postgres.session.server import ask_log, require_log
from backfill.upstream.postgres.tables.baseline import Baseline
from backfill.upstream.postgres.tables.partition_warnings import PartitionWarnings
from backfill.upstream.postgres.tables.partitions import read_partitions
from backfill.upstream.postgres.tables.still_same import ask_identity, require_same_identity
from backfill.upstream.postgres.tables.table import Table
from backfill.wording import FRESH_START

logger = logging.getLogger("backfill")

_WITHOUT_IT: Final = (
    "rows that came before it was carried are without it until they change, or backfill re-backfill reads them again"
)


@dataclass(frozen=True, slots=True)
class _Asked:
    """The questions after each reading, asked together: a distant server takes as long for each alone as for all."""

    log: Asked
    slot: Asked
    identity: Asked
    publication: Asked

    @classmethod
    def of(cls, session: Session, place: Place, table: Table) -> _Asked:
        with session.pipeline():
            return cls(
                ask_log(session),
                slot.ask(session, place.slot),
                ask_identity(session, table),
                place.ask_publication(session, table),
            )


class ChangeLog:
    """Reads the changes of the next batch; what is found decides where that batch ends."""

    def __init__(self, connector: Connector, options: Options, table: Table, place: Place, baseline: Baseline) -> None:
        self._connector = connector
        self._fails_on_data_loss = options.fail_on_data_loss
        self._table = table
        self.place = place
        self.baseline = baseline
        self.expected = ExpectedMessages()
        # Whether the table still has these columns is checked after each reading. No column number is given twice, so
        # a column that has one of these now has had it all along.
        self.added = Added(frozenset(baseline.added(table)), frozenset(item.name for item in table.description.columns))
        self.kept = KeptChanges()
        self._reported: set[str] = set()
        self._partitions = PartitionWarnings(
            table.description, baseline.known_partitions, baseline.partitions_listed_in
        )
        self._published: Published | None = None
        self.lost_up_to = LOG_BEGIN
        """The LSN up to which changes are known to be lost, because the slot no longer has them."""

        self._reached: dict[str, Lsn] = {}
        """For each timeline, the LSN of the latest state of which the sink may have something."""

    def has_reached(self, position: Position) -> None:
        """Notes that the sink may have something of this state, wherever the stream is: the log has to have it."""
        timeline = position.timeline or self.place.log.timeline
        self._reached[timeline] = max(self._reached.get(timeline, LOG_BEGIN), position.lsn)

    def has_gap_after(self, position: Position) -> bool:
        """Whether changes after this position are lost that the stream was told to go on without."""
        return position.lsn < self.lost_up_to

    def begin_place(self, session: Session) -> None:
        """Makes the place for a stream that has read nothing yet, in the log of the server that this session is on.

        That may be on another timeline than the one that described the table: a start may wait for long.
        """
        now = require_log(ask_log(session), system=self.place.log.system, reached=LOG_BEGIN)
        place = replace(self.place, log=OwnLog(self.place.log.system, now))
        self._published = place.begin(self._connector, session, self._table)
        self.place = replace(self._with_beginning(place), published_as=self._published.versions_text)

    def _with_beginning(self, place: Place) -> Place:
        return replace(place, log=place.log.with_beginning(self._connector))

    def require_same_log(self, session: Session) -> None:
        """Raises DataLossError unless this session is on a server that goes on with the log which the stream reads."""
        self.place.log.require_same(ask_log(session), max(self._reached.values(), default=LOG_BEGIN))

    def find_place(self, session: Session, after: Position) -> None:
        """Checks that a stream which stands at `after` can go on from its place; makes the place again where the stream
        may go on without changes that are lost.
        """
        before = self.place
        self.has_reached(after)
        place = replace(before, log=before.log.on_timeline_of_now(self._connector, session, self._reached))
        # All are made, because none says anything about the others: a standby that was promoted may lack the slot.
        checks: tuple[Callable[[], object], ...] = (
            lambda: place.require_synced(session, before),
            lambda: slot.require_readable(session, place.slot, after.lsn),
            lambda: self._look_at_publication(session, place),
        )
        passed = [self._passes(check) for check in checks]
        self.place = place if place != before else self._with_beginning(place)
        if all(passed) and place != before:
            logger.warning(
                "the server is on timeline %s and was on %s: it was promoted or restored. Its log has all that was "
                "read, and it has replication slot %s, so nothing is lost",
                *(place.log.timeline, before.log.timeline, place.slot),
            )
        if not all(passed):
            place.drop_lost_slot(session)
            self._make_place_again(session)
            found = slot.find(session, place.slot)
            self.lost_up_to = LOG_BEGIN if found is None else found.confirmed
        if self._published is not None:
            self.place = replace(self.place, published_as=self._published.versions_text)

    def read(self, session: Session, stretch: Stretch, limit: int) -> log.Peeked:
        """The changes of a stretch, about `limit` of them at the most."""
        after = stretch.after
        self.has_reached(after)
        peek = partial(self._peeked, session, stretch, limit)
        try:
            peeked = peek()
        except OtherServerError:
            self.require_same_log(session)  # If this session is on that server too, this says what to do.
            raise
        except DataLossError:
            self._find_place_again(session, after)
            peeked = peek()
        except DefiniteError:
            # Perhaps somebody has made the slot two_phase, so that its messages cannot be read: then this says so.
            slot.require_kept(session, self.place.slot, after.lsn)
            raise
        self.expected.learn(peeked)
        # After reading, so that a slot or publication which was moved or made again meanwhile is noticed too.
        asked = _Asked.of(session, self.place, self._table)
        self._require_whole(session, asked, after.lsn, stretch.upto)
        # First, because a publication cannot publish what the table no longer has.
        self._require_told(session, asked, all_read=peeked.is_idle)
        self._require_published(session, asked)
        self._report_added(peeked.ignored)
        return peeked

    def _find_place_again(self, session: Session, after: Position) -> None:
        """Checks the place after the slot could not be read: the catalog tells more about a lost slot than the error.

        Returns only where the stream goes on without what was lost; on the same timeline, because only a start notes
        another one.
        """
        self.require_same_log(session)
        self.find_place(session, after)
        if self._fails_on_data_loss:
            self.place.require_same_publication(session, self._table, self._published)
            raise ConnectionLostError(
                f"replication slot {self.place.slot} could not be read, although it exists and is intact: two servers "
                "have answered, because url also leads to a copy of the primary. Point url at the primary alone"
            ) from None

    def _require_whole(self, session: Session, asked: _Asked, after: Lsn, upto: Lsn) -> None:
        """Refuses another log, and a slot that no longer has all of it from where reading began."""
        # Up to the end of the batch: if the log was put back to before that, the rest would pass for no changes.
        self.place.log.require_same(asked.log, max(upto, *self._reached.values()))
        found = slot.require_kept(session, self.place.slot, after, asked=asked.slot)
        if not self._passes(lambda: slot.require_not_beyond(found, max(after, self.lost_up_to))):
            self.lost_up_to = found.confirmed  # so that the loss is reported once

    def _peeked(self, session: Session, stretch: Stretch, limit: int) -> log.Peeked:
        most = self.expected.of(limit, stretch.after)
        with logging_awaited_standbys(self._connector, session, self.place.slot):
            return log.peek(self._connector, log.Feed.of(session, self.place, self._table, self.added), stretch, most)

    def _require_published(self, session: Session, asked: _Asked) -> None:
        """Refuses a publication that leaves out something, or was altered or made again since the last reading.

        The log lacks changes that are not published; where there is no publication, PostgreSQL 18 gives no changes and
        no error.
        """
        try:
            self._published = self.place.require_same_publication(
                session, self._table, self._published, asked=asked.publication
            )
        except DataLossError as error:
            self._go_on_without(error)
            self._make_place_again(session)

    def _look_at_publication(self, session: Session, place: Place) -> None:
        """At the first look requires the publication that the stream began with, and says whether it was altered since
        the query was started last. What is altered from then on ends the stream.
        """
        found = place.require_same_publication(session, self._table)
        if self._published is not None:
            return
        self._published = found
        if place.published_as not in ("", found.versions_text):
            logger.warning(
                "publication %s was altered, or got another owner, since the query was last started: changes that it "
                "left out in between are missing. If there may be any, read the rows again with backfill "
                "re-backfill, which removes none from the sink; or start over with %s",
                place.publication,
                FRESH_START,
            )

    def _make_place_again(self, session: Session) -> None:
        """Makes what is missing of the place; from now on the publication is right as it is."""
        self._published, _ = self.place.make(self._connector, session, self._table)
        self.place = self.place.accepting_publication(session, self._table)

    def _passes(self, check: Callable[[], object]) -> bool:
        """Whether the check finds nothing lost; raises its error, unless the stream is to go on without what is."""
        try:
            check()
        except DataLossError as error:
            self._go_on_without(error)
            return False
        return True

    def _go_on_without(self, lost: DataLossError) -> None:
        """Raises the error, unless the stream is to go on without the changes that were lost."""
        if self._fails_on_data_loss:
            raise lost
        logger.error("going on although changes were lost, because of failOnDataLoss=false: %s", lost)

    def _require_told(self, session: Session, asked: _Asked, *, all_read: bool) -> None:
        """Refuses alterations that concern emitted rows but are not in the log; reports those of partitions."""
        require_same_identity(session, self._table, asked.identity, all_read=all_read)
        if self._table.description.partitioned:
            self._partitions.report(session, read_partitions(session, self._table.description))

    def report_carried(self) -> None:
        """Logs which columns were redefined since the last start, and which were added since the stream began."""
        redefined = self.baseline.redefined(self._table)
        if redefined:
            logger.warning(
                "column %s of %s got another type, precision, scale, length or expression since the query was last "
                "started. That may have changed the values of all rows, which the change log does not show. Read the "
                "rows again with backfill re-backfill%s",
                ", ".join(redefined),
                self._table.description.name.quoted(),
                f", or, if keys were changed, start over with {FRESH_START}: rows stay under their old keys"
                if not set(redefined).isdisjoint(self._table.schema.key)
                else "",
            )
        added = self.baseline.added(self._table)
        if added:
            logger.warning(
                "column %s was added to %s since the stream began; %s, whatever the table has in it",
                ", ".join(added),
                self._table.description.name.quoted(),
                _WITHOUT_IT,
            )

    def _report_added(self, ignored: tuple[str, ...]) -> None:
        """Logs, once for each, the columns that the table did not have when this process began."""
        described = self._table.description
        added = [name for name in ignored if described.column(name) is None and name not in self._reported]
        if added:
            self._reported.update(added)
            logger.warning(
                "column %s was added to %s and is left out; after a restart it is carried, unless the option columns "
                "says otherwise; then %s",
                ", ".join(added),
                described.name.quoted(),
                _WITHOUT_IT,
            )
