"""The stream's replication slot: made, found, checked, advanced, dropped. The publication is made before it."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import sql

from backfill.errors import DatabaseSetupError, DataLossError
from backfill.upstream.lag import Lag
from backfill.upstream.postgres.description import quoted
from backfill.upstream.postgres.position import (
    LOG_BEGIN,
    Lsn,
    Position,
    end_of_last_record,
    format_lsn,
    parse_lsn,
)
from backfill.upstream.postgres.replication.blockers import logging_blockers
from backfill.upstream.postgres.replication.end_of_log import CLOCK
from backfill.upstream.postgres.replication.timelines import another
from backfill.upstream.postgres.session.connection import Asked, Connector, Session, one_row
from backfill.upstream.postgres.session.failures import about_slot, translating
from backfill.upstream.postgres.session.server import START_OVER_OR_GO_ON
from backfill.wording import ELSEWHERE

logger = logging.getLogger("backfill")

_LONGEST_NAME: Final = 63

_FAILS_OVER: Final = 170000
"""From this version on a slot can be made so that standbys which synchronize slots get it too."""

BETWEEN_LOOKS: Final = (
    "a stream uses its slot only for moments, so active is false in between; look whether confirmed_flush_lsn moves, "
    "and end a stream with `backfill drop`"
)
"""What to know before a slot that looks unused is dropped."""

# On Amazon RDS and Aurora, where nobody may grant REPLICATION, membership in a role stands for it.
_RIGHT: Final = """
    SELECT r.rolname, r.rolreplication OR r.rolsuper OR coalesce(pg_catalog.pg_has_role(g.oid, 'MEMBER'), false),
           g.rolname
    FROM pg_catalog.pg_roles r LEFT JOIN pg_catalog.pg_roles g ON g.rolname = 'rds_replication'
    WHERE r.rolname = CURRENT_USER
"""


# Leaves alone every slot that `_require_intact` would refuse; where it gives no row, that is called to say why.
_ADVANCE: Final = """
    SELECT pg_catalog.pg_replication_slot_advance(slot_name, %(to)s::pg_lsn)
    FROM pg_catalog.pg_replication_slots
    WHERE slot_name = %(slot)s AND coalesce(confirmed_flush_lsn, '0/0') < %(to)s::pg_lsn
      AND plugin = 'pgoutput' AND NOT two_phase AND wal_status IS DISTINCT FROM 'lost'
      AND datoid = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
"""


_MAKE: Final = "SELECT pg_catalog.pg_create_logical_replication_slot(%s, 'pgoutput')"
_MAKE_TO_FAIL_OVER: Final = "SELECT pg_catalog.pg_create_logical_replication_slot(%s, 'pgoutput', failover => true)"


def default_name(schema: str, table: str, stream: str) -> str:
    """A name for a slot and a publication by which one sees whose they are; valid for both, unquoted."""
    readable = re.sub(r"[^a-z0-9]+", "_", f"{schema}_{table}".lower()).strip("_")
    return f"backfill_{readable[: _LONGEST_NAME - len('backfill__') - len(stream)]}_{stream}"


@dataclass(frozen=True, slots=True)
class SlotState:
    """A row of `pg_replication_slots` (see the PostgreSQL manual)."""

    name: str
    plugin: str | None
    database: str | None
    """The database's name; where its encoding is not UTF8 the server may tell it wrongly."""

    here: bool
    """Whether that is the session's database."""

    confirmed: Lsn
    wal_status: str | None
    invalidation: str | None
    """Why it was invalidated, where the server says so: from version 17 on."""

    two_phase: bool
    """Whether it tells of transactions when they are prepared, and not when they are committed."""

    synced: bool
    """Whether the server got it from its primary before it was promoted itself: from version 17 on."""

    @property
    def is_lost(self) -> bool:
        """Whether it was invalidated: nothing can be read from it any more."""
        return self.wal_status == "lost"

    @property
    def kind_text(self) -> str:
        """How it differs from a stream's slot, in words; a physical one has no plugin, and belongs to no database."""
        return f"uses {self.plugin} and not pgoutput" if self.plugin else "is a physical one"

    @property
    def dropping(self) -> str:
        """The advice to drop this slot, which no stream made."""
        return f"drop it if nobody needs it (SELECT pg_drop_replication_slot('{self.name}'))"

    @property
    def loss_text(self) -> str:
        """How the server says that it is lost, and why, where it says so."""
        return f"wal_status=lost{f', {self.invalidation}' if self.invalidation else ''}"


_WHAT_KEEPS_IT: Final = {
    "idle_timeout": (
        "set idle_replication_slot_timeout to 0, or to more than the longest stop, the longest batch and the "
        "trigger's interval"
    ),
    "wal_level_insufficient": "leave wal_level at logical",
}


_WHERE_NOTHING_WAS_READ: Final = (
    "Start the query again: if it has read nothing yet, it makes the slot again and nothing is lost; else it says "
    "how to go on"
)


def ask(session: Session, slot: str) -> Asked:
    """Asks for what `find` and `require_kept` look at."""
    return session.execute(
        "SELECT plugin, database, datoid IS NOT DISTINCT FROM (SELECT oid FROM pg_catalog.pg_database "
        "WHERE datname = pg_catalog.current_database()), confirmed_flush_lsn::text, wal_status, "
        "pg_catalog.to_jsonb(s) ->> 'invalidation_reason'::text, two_phase, "
        "coalesce((pg_catalog.to_jsonb(s) ->> 'synced'::text)::boolean, false) "
        "FROM pg_catalog.pg_replication_slots s WHERE slot_name = %s",
        [slot],
    )


def find(session: Session, slot: str, asked: Asked | None = None) -> SlotState | None:
    """The slot; None where there is none. While it is still being made, `confirmed` is LOG_BEGIN."""
    row = (asked or ask(session, slot)).fetchone()
    if row is None:
        return None
    plugin, database, here, confirmed, *others = row
    return SlotState(slot, plugin, database, here, parse_lsn(confirmed) if confirmed else LOG_BEGIN, *others)


def _require_committed_alone(found: SlotState) -> None:
    if found.two_phase:
        raise DatabaseSetupError(
            f"replication slot {found.name} is two_phase, so it shows transactions before they are committed. From "
            f"PostgreSQL 18 on, run ALTER_REPLICATION_SLOT {found.name} (TWO_PHASE false) over a replication "
            "connection (psql 'replication=database'), which loses nothing; before, drop it and make it without "
            "two_phase, or let the stream make one"
        )


def require_readable(session: Session, slot: str, after: Lsn, *, way_out: str = START_OVER_OR_GO_ON) -> None:
    """Raises DataLossError, which says what is lost, unless the slot still holds every change after the LSN `after`."""
    found = require_kept(session, slot, after, way_out=way_out)
    require_not_beyond(found, after, way_out=way_out)


def require_not_beyond(found: SlotState, after: Lsn, *, way_out: str = START_OVER_OR_GO_ON) -> None:
    """DataLossError where the slot stands beyond the LSN `after`: it no longer holds what lies between the two."""
    if found.confirmed > after:
        raise DataLossError(
            f"replication slot {found.name} is at {format_lsn(found.confirmed)}, beyond {format_lsn(after)}, where "
            "reading was to begin, so the changes in between are gone: somebody advanced the slot or made it again, "
            f"or an older checkpoint was restored. {way_out}"
        )


def require_synced(session: Session, slot: str, *, before: str, now: str) -> None:
    """DataLossError unless the slot was synchronized from the primary of timeline `before`, and so lacks nothing."""
    found = find(session, slot)
    if found is None or not found.synced:
        raise DataLossError(
            f"{another(before, now)}. It has all that was read, but the replication slot {slot} "
            f"{('is not there' if found is None else 'did not come along by slot synchronization')}, so later changes "
            f"may be missing. {START_OVER_OR_GO_ON}"
        )


def require_kept(
    session: Session, slot: str, after: Lsn, *, way_out: str = START_OVER_OR_GO_ON, asked: Asked | None = None
) -> SlotState:
    """The slot, if it can be read from, wherever it stands; DataLossError where what comes after `after` is gone.

    DatabaseSetupError where it is of another database than the session's: nothing is lost then, and what the session
    sees is not the stream's, as in a clone (CREATE DATABASE … TEMPLATE), whose tables have the same OIDs.
    """
    found = find(session, slot, asked)
    if found is None:
        raise DataLossError(
            f"replication slot {slot} no longer exists; the changes after {format_lsn(after)} are gone. {way_out}"
        )
    _require_intact(session, found, after, way_out)
    return found


def _require_intact(session: Session, found: SlotState, after: Lsn, way_out: str = START_OVER_OR_GO_ON) -> None:
    if found.plugin != "pgoutput":
        raise DataLossError(
            f"replication slot {found.name} {found.kind_text}, so it is not the slot that was read: {found.dropping}. "
            f"{way_out}"
        )
    if not found.here:
        raise DatabaseSetupError(
            f"{_elsewhere(session, found)}; name {found.database} in url. If the stream is to follow "
            f"{session.info.dbname} from now on, start over with {ELSEWHERE}"
        )
    _require_committed_alone(found)
    if found.is_lost:
        keep = _WHAT_KEEPS_IT.get(found.invalidation or "", "raise max_slot_wal_keep_size")
        raise DataLossError(
            f"replication slot {found.name} was invalidated ({found.loss_text}); the changes after "
            f"{format_lsn(after)} are gone. {way_out}; {keep} so that it does not happen again"
        )


def require_not_lost(session: Session, slot: str) -> None:
    """Raises DataLossError where the slot was invalidated; a stream that has read nothing may not have made one yet."""
    found = find(session, slot)
    if found is not None and found.is_lost:
        _require_intact(session, found, found.confirmed, _WHERE_NOTHING_WAS_READ)


def _elsewhere(session: Session, found: SlotState) -> str:
    return (
        f"replication slot {found.name} belongs to database {found.database}, and url names database "
        f"{session.info.dbname}"
    )


def make_slot(connector: Connector, session: Session, name: str) -> bool:
    """Makes a logical slot for pgoutput, or checks the one by this name. Returns whether it was made.

    One that was invalidated is made again: it is of no use to anybody, and a caller of this has nothing to read that
    was written before. Says what it waits for.
    """
    found = find(session, name)
    if found is not None and not found.confirmed:
        _end_making(session, name)
        found = find(session, name)
    if found is not None:
        require_usable(session, found)
        if not found.is_lost:
            return False
    try:
        with _setup_errors(session):
            if found is not None:
                drop(session, name)
                logger.warning("replication slot %s was invalidated (%s), and is made again", name, found.loss_text)
            with logging_blockers(connector, session, f"replication slot {name}"):
                session.execute(_MAKE_TO_FAIL_OVER if session.info.server_version >= _FAILS_OVER else _MAKE, [name])
    except psycopg.errors.DuplicateObject:
        return False
    return True


@contextmanager
def _setup_errors(session: Session) -> Iterator[None]:
    """Raises DatabaseSetupError with the way out where settings or rights do not allow making a slot."""
    try:
        yield
    except psycopg.errors.ConfigurationLimitExceeded as error:
        raise DatabaseSetupError(
            f"{error.diag.message_primary}: drop a slot that is no longer used (SELECT slot_name, active, "
            f"confirmed_flush_lsn FROM pg_replication_slots; {BETWEEN_LOOKS}), or raise max_replication_slots and "
            "restart the server"
        ) from None
    except psycopg.errors.ObjectNotInPrerequisiteState as error:
        setting = "max_replication_slots = 10" if "max_replication_slots" in str(error) else "wal_level = 'logical'"
        raise DatabaseSetupError(
            f"{error.diag.message_primary}; run ALTER SYSTEM SET {setting} and restart the server"
        ) from None
    except psycopg.errors.InsufficientPrivilege as error:
        mend = granting(session)
        way_out = f"; let an administrator run {mend}" if mend else ""
        raise DatabaseSetupError(f"{error.diag.message_primary}{way_out}") from None


def granting(session: Session) -> str:
    """The statement that lets the session's role use slots; empty where it may already."""
    role, may, stands_for = one_row(session.execute(_RIGHT))
    role = quoted(role)
    if may:
        return ""
    return f"GRANT {stands_for} TO {role}" if stands_for else f"ALTER ROLE {role} REPLICATION"


def require_usable(session: Session, found: SlotState) -> None:
    """Raises DatabaseSetupError unless a stream may begin with this slot, which somebody has made."""
    if found.plugin != "pgoutput":
        raise DatabaseSetupError(
            f"replication slot {found.name} exists and {found.kind_text}; choose another slotName, or {found.dropping}"
        )
    if not found.here:
        raise DatabaseSetupError(f"{_elsewhere(session, found)}; choose another slotName")
    _require_committed_alone(found)


def _end_making(session: Session, name: str) -> None:
    """Ends a session that still makes this slot: its client has died, and the server does not notice while it waits.

    Else the slot would come to be some time later, and would not hold what has happened until then.
    """
    session.execute(
        "SELECT pg_catalog.pg_terminate_backend(active_pid, 5000) FROM pg_catalog.pg_replication_slots "
        "WHERE slot_name = %s AND slot_type = 'logical' AND confirmed_flush_lsn IS NULL AND active",
        [name],
    )


def advance(session: Session, slot: str, to: Lsn) -> None:
    """Lets the server forget what lies before the LSN `to`. A slot that is already further stays where it is.

    Raises DataLossError where the slot was invalidated: servers before 16 only say that it cannot be advanced.
    """
    with translating(about_slot):
        moved = session.execute(_ADVANCE, {"slot": slot, "to": format_lsn(to)}).fetchone()
    found = None if moved else find(session, slot)
    if found is not None and found.confirmed < to:
        _require_intact(session, found, to)


def lag(session: Session, slot: str, reached: Position | None, complete_until: int | None) -> Lag:
    """How far the present is from the position `reached` and the moment `complete_until` (µs since 1970), and how much
    of the log the slot keeps, each where it is known."""
    query = sql.SQL(
        "SELECT {}, pg_catalog.pg_current_wal_insert_lsn()::text, "
        "(SELECT restart_lsn::text FROM pg_catalog.pg_replication_slots WHERE slot_name = %s)"
    ).format(CLOCK)
    now, inserted, kept = one_row(session.execute(query, [slot]))
    end = end_of_last_record(parse_lsn(inserted))
    if reached is not None and reached.shows_all_until(end):
        complete_until = now  # Whatever was committed by then would be in the log.
    # A moment still to come is by a clock that was set back since, and says nothing: least of all that there is no lag.
    is_known = complete_until is not None and complete_until <= now
    return Lag(
        complete_until=complete_until if is_known else None,
        lag_seconds=(now - complete_until) // 1_000_000 if is_known else None,
        lag_bytes=None if reached is None else max(0, end - reached.lsn),
        retained_bytes=end - parse_lsn(kept) if kept else None,
    )


def drop(session: Session, slot: str) -> str:
    """Drops the slot, ending the session that reads it; says for people what became of it.

    Raises DatabaseSetupError where it is physical, as a standby's is, or of another database.
    """
    found = find(session, slot)
    if found is not None and not found.plugin:
        raise DatabaseSetupError(
            f"replication slot {slot} {found.kind_text}, so it is not the stream's, and nothing was dropped: "
            f"{found.dropping}, then repeat this"
        )
    if found is not None and not found.here:
        raise DatabaseSetupError(f"{_elsewhere(session, found)}; nothing was dropped. Name {found.database} in url")
    session.execute(
        "SELECT pg_catalog.pg_terminate_backend(active_pid, 5000) FROM pg_catalog.pg_replication_slots "
        "WHERE slot_name = %s AND active",
        [slot],
    )
    session.execute(
        "SELECT pg_catalog.pg_drop_replication_slot(slot_name) FROM pg_catalog.pg_replication_slots "
        "WHERE slot_name = %s",
        [slot],
    )
    return f"slot {slot}" + ("" if found is not None else " (gone already)")
