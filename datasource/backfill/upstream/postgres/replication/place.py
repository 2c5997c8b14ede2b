"""A stream's place in the change log: made when the stream begins, found again and checked ever after."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from psycopg import sql

from backfill.errors import DatabaseSetupError, DataLossError, OptionsError
from backfill.options import Options
from backfill.upstream import Bookmark
from backfill.upstream.noted import noted
from backfill.upstream.postgres.position import LOG_BEGIN, Lsn
from backfill.upstream.postgres.replication import publication, slot
from backfill.upstream.postgres.replication.end_of_log import ENDS_OF_LOG, flushed_end
from backfill.upstream.postgres.replication.own_log import OwnLog
from backfill.upstream.postgres.replication.publication import Published
from backfill.upstream.postgres.replication.standbys import logging_awaited_standbys
from backfill.upstream.postgres.replication.unseen import wait_for_open, wait_for_unseen
from backfill.upstream.postgres.replication.writers import require_writable
from backfill.upstream.postgres.session.connection import Asked, Connector, Session, one_row
from backfill.upstream.postgres.session.server import START_OVER_OR_GO_ON, ask_log, read_server, require_primary
from backfill.upstream.postgres.tables.table import Table
from backfill.wording import FRESH_START, another_option

_SILENT: Final = 180000
"""From this version on, changes made while there was no publication are passed over; before, such changes make the log
unreadable.
"""


@dataclass(frozen=True, slots=True)
class Place:
    """A replication slot and a publication, and the log they belong to."""

    slot: str
    publication: str
    own_publication: bool
    """Whether the publication was made for this stream, and is dropped with it."""

    log: OwnLog
    published: str = ""
    """The OIDs of a publication that somebody else has made, and of the table's membership in it, as they were when the
    stream began, or went on although changes had been lost; "" where it was not there.
    """

    published_as: str = ""
    """The `Published.versions` of the publication when the query was started last. Nothing if that was by an earlier
    release.
    """

    @classmethod
    def of_stream(cls, stream: str, options: Options, table: Table) -> Place:
        """The place that a new stream of this name will have."""
        name = table.description.name
        own = slot.default_name(name.schema, name.name, stream)
        return cls(
            slot=options.slot_name or own,
            publication=options.publication_name or own,
            own_publication=not options.publication_name,
            log=OwnLog(str(table.server.system_identifier), str(table.server.timeline)),
        )

    @classmethod
    def given(cls, options: Options, table: Table) -> Place:
        """The slot that the options name, which somebody else has made. Its publication has the same name, unless the
        options name that as well.
        """
        return replace(
            cls.of_stream("", options, table),
            publication=options.publication_name or options.slot_name,
            own_publication=False,
        )

    @classmethod
    def of(cls, bookmark: Bookmark) -> Place:
        """The place that a bookmark made of `names` notes; OptionsError where it is not of a table of PostgreSQL."""
        if "slot" not in dict(bookmark):
            raise OptionsError(
                "the checkpoint belongs to another kind of source, and url and dbtable name a table of PostgreSQL. "
                "Name the source that the checkpoint was made with (a Delta table by path), or use a fresh "
                "checkpointLocation"
            )
        return cls(
            slot=noted(bookmark, "slot"),
            publication=noted(bookmark, "publication"),
            own_publication=noted(bookmark, "own_publication") == "true",
            log=OwnLog(noted(bookmark, "system"), noted(bookmark, "timeline"), dict(bookmark).get("began", "")),
            published=dict(bookmark).get("published", ""),
            published_as=dict(bookmark).get("published_as", ""),
        )

    @property
    def names(self) -> Bookmark:
        return (
            ("slot", self.slot),
            ("publication", self.publication),
            ("own_publication", "true" if self.own_publication else "false"),
            ("system", self.log.system),
            ("timeline", self.log.timeline),
            *((("began", self.log.began),) if self.log.began else ()),
            *((("published", self.published),) if self.published else ()),
            *((("published_as", self.published_as),) if self.published_as else ()),
        )

    def require_named(self, options: Options) -> None:
        """Raises OptionsError where the options name another slot or publication than the stream has read from."""
        named = (
            ("slotName", self.slot, options.slot_name),
            ("publicationName", self.publication, options.publication_name),
        )
        for option, began, now in named:
            if now not in ("", began):
                raise OptionsError(another_option(f"{option}={began}", f"{option}={now}"))

    def begin(self, connector: Connector, session: Session, table: Table) -> Published:
        """As `make`, for a stream that has read nothing yet; may be done again after the driver was killed. When it
        returns, readers see all that the slot does not tell of. Returns the publication as it was before that wait.

        A publication that a person has made under the stream's own name is refused: from the next start on it would be
        taken for one of ours that was dropped and made again.
        """
        if self.own_publication:
            publication.require_none_of_others(session, self.publication)
        published, made = self.make(connector, session, table)
        if made or self._makes_both:
            wait_for_unseen(connector, session, self.slot)
        else:
            self._pass_over(connector, session)
        return published

    @property
    def _makes_both(self) -> bool:
        """Whether the stream makes slot and publication by itself, and so the publication first."""
        return self.own_publication and self.slot == self.publication

    def _pass_over(self, connector: Connector, session: Session) -> None:
        """Moves a slot that was there already past all that was written before the publication was made.

        See `unseen`; up to PostgreSQL 17 the slot could not be read from further back.
        """
        wait_for_open(connector, session, self.slot)
        inserted, flushed = one_row(session.execute(sql.SQL("SELECT {}").format(ENDS_OF_LOG)))
        behind = flushed_end(session, connector, inserted, flushed)
        wait_for_unseen(connector, session, self.slot)
        with logging_awaited_standbys(connector, session, self.slot):
            slot.advance(session, self.slot, behind)

    def make(self, connector: Connector, session: Session, table: Table) -> tuple[Published, bool]:
        """Makes the publication and the slot where they are missing. Returns the publication, and whether the slot was
        made. From now on a publication of the stream's own counts as right as it is. May wait for open transactions,
        and says so.

        Raises, before anything is made, where the table could not be written to any more once it is published.
        """
        require_writable(session, self.publication, table.description)
        if self.own_publication:
            publication.make(connector, session, self.publication, table.description)
        found = self.require_published(session, table)
        if self.own_publication and found.noted != found.membership:
            # Changes that it left out while the table was not in it are not missed: a stream that makes its place has
            # read nothing yet, or was told to go on without them.
            publication.note_membership(session, self.publication, table.description.oid)
        return found, slot.make_slot(connector, session, self.slot)

    def require_published(self, session: Session, table: Table, asked: Asked | None = None) -> Published:
        """The publication; raises where it is not there, or would leave out something that the stream carries."""
        return publication.require(session, self.publication, table.description.oid, table.names, asked=asked)

    def ask_publication(self, session: Session, table: Table) -> Asked:
        """Asks for what `require_same_publication` looks at."""
        return publication.ask(session, self.publication, table.description.oid)

    def require_same_publication(
        self, session: Session, table: Table, before: Published | None = None, *, asked: Asked | None = None
    ) -> Published:
        """As `require_published`; DataLossError where it or the table's membership in it is not as it was `before`.

        Changes made in between are not in the log, and PostgreSQL 18 passes over them in silence. Without `before`, the
        stream's own publication is compared with what its comment notes. Another one is always compared with
        `published`, if that is known.
        """
        asked = asked or self.ask_publication(session, table)
        try:
            if self.own_publication:
                found = self._require_own_publication(session, table, asked, as_noted=before is None)
            else:
                found = self.require_published(session, table, asked)
        except DatabaseSetupError as error:
            # Once it is mended, nothing tells that it was ever otherwise.
            raise DatabaseSetupError(
                f"{error}. Changes that it leaves out until then are missing for good, and once it is mended the "
                f"stream may go on without an error. If they matter, start over with {FRESH_START}; else start the "
                "query again then, once with failOnDataLoss=false if it asks for that"
            ) from None
        if self.published not in ("", _joined(found.ids)):
            raise DataLossError(
                f"publication {self.publication} was dropped and made again since the stream began, or the table was "
                f"taken out of it and put back (OIDs {_joined(found.ids)}, expected {self.published}): changes made in "
                "between are not in the log. If one transaction did both, nothing is lost: start the query once with "
                f"failOnDataLoss=false. Else: {START_OVER_OR_GO_ON}"
            )
        if before not in (None, found):
            raise DataLossError(
                f"publication {self.publication} was altered, or dropped and made again, or the table or its schema "
                "was taken out of it and put back: changes made in between may be missing from the log. If only its "
                f"owner was changed, nothing is lost: start the query again as it is. Else: {START_OVER_OR_GO_ON}"
            )
        return found

    def _require_own_publication(self, session: Session, table: Table, asked: Asked, *, as_noted: bool) -> Published:
        """The publication made for the stream; DataLossError where it is gone.

        If `as_noted`, also where its comment does not say the table's present membership in it.
        """
        found = publication.checked(session, self.publication, table.description.oid, table.names, asked)
        if found is None:
            raise DataLossError(
                f"publication {self.publication}, which was made for the stream, was dropped or renamed: changes made "
                "since then are not in the log, and once it has its name back, a stream may go on without an error. "
                f"{START_OVER_OR_GO_ON}"
            )
        if as_noted and found.noted is None:
            put_back = publication.noting(self.publication, found.membership).as_string(session)
            raise DataLossError(
                f"publication {self.publication} has lost the comment that says that it was made for a stream. If "
                f"somebody only changed the comment, nothing is lost: run {put_back} and start the query again. If it "
                "was dropped and made again, changes made in between may be missing from the log: "
                f"{START_OVER_OR_GO_ON}"
            )
        if as_noted and found.noted != found.membership:
            raise DataLossError(
                f"the table was taken out of publication {self.publication} and put back: changes made in between may "
                f"be missing from the log. {START_OVER_OR_GO_ON}"
            )
        return found

    def require_readable(self, session: Session, after: Lsn, upto: Lsn, *, way_out: str) -> None:
        """Raises DataLossError unless every change after the LSN `after` and up to `upto` can be had.

        `way_out` is what can be done about it.
        """
        self.log.require_same(ask_log(session), upto, way_out=way_out)
        slot.require_readable(session, self.slot, after, way_out=way_out)

    def require_synced(self, session: Session, before: Place) -> None:
        """Raises DataLossError where this place is on another timeline than `before`, and its slot may lack changes."""
        if self.log.timeline != before.log.timeline:
            slot.require_synced(session, self.slot, before=before.log.timeline, now=self.log.timeline)

    def require_kept(self, connector: Connector, session: Session, reached: Lsn | None) -> None:
        """Raises unless this server has the log in which the LSN was reached, and the slot still keeps what comes after
        it. Does not look where the slot stands, because a stream that runs moves it. Where `reached` is None the slot
        may not have been made yet.
        """
        require_primary(read_server(session))
        log = self.log.on_timeline_of_now(connector, session, {self.log.timeline: reached or LOG_BEGIN})
        if reached is None:
            slot.require_not_lost(session, self.slot)
            return
        replace(self, log=log).require_synced(session, self)
        slot.require_kept(session, self.slot, reached)

    def accepting_publication(self, session: Session, table: Table) -> Place:
        """The same place, taking the publication as it is now for the right one; its own is as `make` has left it."""
        if self.own_publication:
            return self
        found = publication.find(session, self.publication, table.description.oid)
        return replace(self, published=_joined(found.ids) if found else "")

    def drop_lost_slot(self, session: Session) -> None:
        """Drops the slot where nothing can be read from it any more, so that `make` makes it again."""
        found = slot.find(session, self.slot)
        remade = (
            self.own_publication
            and session.info.server_version < _SILENT
            and not publication.is_of_stream(session, self.publication)
        )
        if found is not None and (found.is_lost or remade):
            slot.drop(session, self.slot)

    def drop(self, session: Session) -> tuple[str, ...]:
        """Drops what `make` made, where it is there, and returns the names for people. Raises and drops nothing where
        the role may drop only one of the two, or the server or database is not the place's own: there the slot would go
        on keeping the log.
        """
        server = read_server(session)
        require_primary(server)
        if str(server.system_identifier) != self.log.system:
            publication_too = f"; DROP PUBLICATION IF EXISTS {self.publication}" if self.own_publication else ""
            raise DatabaseSetupError(
                f"replication slot {self.slot} belongs to system {self.log.system}, and url leads to system "
                f"{server.system_identifier}; nothing was dropped. Point url at the former system. If that is gone "
                "for good, delete stateDir or name an empty one. If its slot was copied to the new system, as by "
                f"pg_upgrade, also run SELECT pg_drop_replication_slot('{self.slot}'){publication_too} there"
            )
        if not self.own_publication:
            return (slot.drop(session, self.slot),)
        with session.transaction():
            gone = publication.drop(session, self.publication)
            return slot.drop(session, self.slot), gone  # Last, because no rollback gives a slot back.


def _joined(ids: tuple[int, int]) -> str:
    return " ".join(map(str, ids))
