"""The changes between two LSNs, read on an executor from a slot that somebody has made for it.

The slot is only peeked at and stays where it is, so that the same can be read again for as long as nobody advances it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from backfill.arrow.batches import without_first
from backfill.errors import DatabaseSetupError, DataLossError, OptionsError, SlotBusyError
from backfill.upstream import EARLIEST, LATEST
from backfill.upstream.postgres.changes import log
from backfill.upstream.postgres.position import Lsn, Position, end_of_last_record, format_lsn, parse_lsn
from backfill.upstream.postgres.replication import publication, slot
from backfill.upstream.postgres.replication.place import Place
from backfill.upstream.postgres.session.connection import Connector, Session
from backfill.upstream.postgres.session.failures import translating
from backfill.upstream.postgres.session.resuming import resuming
from backfill.upstream.postgres.session.retries import RetryPolicy
from backfill.upstream.postgres.session.server import require_primary_again
from backfill.upstream.postgres.tables.table import Table

_LSN: Final = re.compile(r"[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}")

_WAY_OUT: Final = (
    "Read what is left with load() and startingPosition=earliest, and the table for the rest; and use a slot that "
    "nobody else uses"
)

_OF_THE_SLOT: Final = (
    "set publicationName to one that was made before the slot. If there is none, make {}, then make the slot again, "
    "and read the table: a slot has no changes from before its publication was made"
)
"""Making the publication alone would not do: PostgreSQL 18 would leave those changes out without a word."""


@dataclass(frozen=True, slots=True)
class PostgresChangeReader:
    """See `backfill.upstream.ChangeReader`. A commit lies between two LSNs if its record in the log begins at or after
    the first and before the second. A lost connection is made anew and reading goes on behind the last row.
    """

    connector: Connector
    table: Table
    place: Place
    retries: RetryPolicy
    after: str
    upto: str

    def read(self) -> Iterator[pa.RecordBatch]:
        return resuming(lambda passed_on: without_first(self._once(), passed_on), self.retries, same_again=True)

    def _once(self) -> Iterator[pa.RecordBatch]:
        after, upto = Position.parse(self.after), Position.parse(self.upto)
        feed = self._readable(after, upto)
        try:
            stretch = log.Stretch(after, upto, upto.lsn)
            yield from log.changes(self.connector, feed, stretch, self.table.description.name)
        except DataLossError:
            # The server says less about a slot that is gone than its catalog does.
            self._readable(after, upto)
            raise
        # Again, so that a slot which was moved or made again in the meantime is noticed as well.
        self._readable(after, upto)

    def _readable(self, after: Position, upto: Position) -> log.Feed:
        """How to read the log; raises unless everything between the two positions can be had."""
        with self.connector.session() as session, translating():
            require_primary_again(session)
            self.place.require_readable(session, after.lsn, upto.lsn, way_out=_WAY_OUT)
            _require_published(session, self.place, self.table)
            return log.Feed.of(session, self.place, self.table)


def resolved(
    session: Session, place: Place, table: Table, end_of_log: Lsn, starting: str, ending: str
) -> tuple[str, str]:
    """The two positions as LSNs, where the changes between them can be read; see `backfill.upstream.Upstream.span`."""
    found = slot.find(session, place.slot)
    if found is None:
        raise DatabaseSetupError(
            f"replication slot {place.slot} does not exist. Set slotName to one that does, or make it after its "
            f"publication: SELECT pg_create_logical_replication_slot('{place.slot}', 'pgoutput')"
        )
    slot.require_usable(session, found)
    _require_published(session, place, table)
    if not found.confirmed:
        raise SlotBusyError(
            f"replication slot {place.slot} is still being made; load() again when confirmed_flush_lsn in "
            "pg_replication_slots is set"
        )
    named = {EARLIEST: found.confirmed, LATEST: end_of_log}
    after, upto = (
        # The end of the log may lie behind the head of a page, as after each switch to another segment of the log.
        end_of_log if end_of_last_record(lsn) == end_of_log else lsn
        for lsn in (_lsn("startingPosition", starting, named), _lsn("endingPosition", ending, named))
    )
    if upto > end_of_log:
        raise OptionsError(
            f"endingPosition is {format_lsn(upto)} and the server's log ends at {format_lsn(end_of_log)}; expected a "
            f"position before that, or {LATEST}"
        )
    if after > upto:
        end = "the end of the server's log" if upto == end_of_log else "endingPosition"
        raise OptionsError(f"startingPosition is {format_lsn(after)}, which lies after {end}, {format_lsn(upto)}")
    place.require_readable(session, after, upto, way_out=_WAY_OUT)
    return format_lsn(after), format_lsn(upto)


def _require_published(session: Session, place: Place, table: Table) -> None:
    publication.require(session, place.publication, table.description.oid, table.names, mend=_OF_THE_SLOT)


def _lsn(option: str, text: str, named: dict[str, Lsn]) -> Lsn:
    given = text.strip()
    if given.lower() in named:
        return named[given.lower()]
    if not _LSN.fullmatch(given):
        raise OptionsError(
            f"{option} is {given!r}; expected an LSN such as 0/16B2D80 (SELECT pg_current_wal_insert_lsn()), "
            f"{EARLIEST} or {LATEST}"
        )
    return parse_lsn(given)
