"""The stream's replication slot and publication: made, found, checked, advanced, dropped.

The publication comes first: pgoutput looks it up as it was when each change was made, so a slot that is older than
its publication fails on the changes between (PostgreSQL manual, 49.6).
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import psycopg
from psycopg import sql

from backfill.errors import DatabaseSetupError, DataLossError, TableError
from backfill.upstream.postgres.connection import Connector, Session
from backfill.upstream.postgres.failures import About, translating
from backfill.upstream.postgres.position import format_lsn, parse_lsn
from backfill.upstream.postgres.published import listed
from backfill.upstream.postgres.server import START_OVER

logger = logging.getLogger("backfill")

_LONGEST_NAME: Final = 63
_GENERATED_ARE_PUBLISHED: Final = 180000
_SILENT: Final = 180000
"""From this version on changes are passed over that were made while there was no publication."""

BETWEEN_LOOKS: Final = (
    "a stream reads its slot for moments only, and active is false between them: go by whether confirmed_flush_lsn "
    "moves, and end a stream with `backfill drop`"
)
"""What to know before a slot that looks unused is dropped."""

SAY_AFTER: Final = 5.0
"""Seconds of waiting for the server after which it is said what is waited for."""


def default_name(schema: str, table: str, stream: str) -> str:
    """A name for a slot and a publication by which one sees whose they are; valid for both, unquoted."""
    readable = re.sub(r"[^a-z0-9]+", "_", f"{schema}_{table}".lower()).strip("_")
    return f"backfill_{readable[: _LONGEST_NAME - len('backfill__') - len(stream)]}_{stream}"


@dataclass(frozen=True, slots=True)
class SlotState:
    """A row of `pg_replication_slots` (PostgreSQL manual, 52.20)."""

    plugin: str | None
    database: str | None
    confirmed: int
    wal_status: str | None
    invalidation: str | None
    """Why it was invalidated, where the server says so: from version 17 on."""

    two_phase: bool
    """Whether it tells of transactions when they are prepared, and not when they are committed."""


@dataclass(frozen=True, slots=True)
class Published:
    """A publication and the table's membership in it, by their OIDs; the latter 0 where it has all tables of a kind.

    Both are others once somebody has dropped the one or the other and made it again. `versions` are those of the rows
    in the catalog by which the table is published, be it as itself, with its schema or through what it is a partition
    of: any ALTER PUBLICATION that concerns it changes them, and so does another owner. `noted` is the membership that
    a publication of ours had when it was made: its comment says so, which somebody may replace.
    """

    publication: int
    membership: int
    versions: tuple[str, ...]
    noted: int | None = field(compare=False)


_NOTE: Final = "made by backfill, membership "

_SCHEMAS_ARE_PUBLISHED: Final = 150000

_PUBLISHED: Final = """
    WITH own AS (SELECT c.oid, c.relnamespace FROM pg_catalog.pg_class c
                 WHERE c.oid = %(oid)s
                    OR c.oid IN (SELECT relid FROM pg_catalog.pg_partition_ancestors(%(oid)s::oid::regclass)))
    SELECT p.pubinsert AND p.pubupdate AND p.pubdelete AND p.pubtruncate, p.oid::int8,
           coalesce((SELECT r.oid::int8 FROM pg_catalog.pg_publication_rel r
                     WHERE r.prpubid = p.oid AND r.prrelid = %(oid)s), 0),
           ARRAY[p.xmin::text]
           || ARRAY(SELECT r.oid || ' ' || r.xmin FROM pg_catalog.pg_publication_rel r
                    WHERE r.prpubid = p.oid AND r.prrelid IN (SELECT oid FROM own) ORDER BY r.oid){schemas}
    FROM pg_catalog.pg_publication p WHERE p.pubname = %(name)s
"""
_SCHEMAS: Final = """
           || ARRAY(SELECT s.oid || ' ' || s.xmin FROM pg_catalog.pg_publication_namespace s
                    WHERE s.pnpubid = p.oid AND s.pnnspid IN (SELECT relnamespace FROM own) ORDER BY s.oid)
"""

_WHAT_KEEPS_IT: Final = {
    "idle_timeout": "set idle_replication_slot_timeout to 0, or to longer than the stream is ever stopped or a batch "
    "takes",
    "wal_level_insufficient": "leave wal_level at logical",
}


def find(session: Session, slot: str) -> SlotState | None:
    row = session.execute(
        "SELECT plugin, database, confirmed_flush_lsn::text, wal_status, "
        "pg_catalog.to_jsonb(s) ->> 'invalidation_reason', two_phase "
        "FROM pg_catalog.pg_replication_slots s WHERE slot_name = %s",
        [slot],
    ).fetchone()
    if row is None:
        return None
    plugin, database, confirmed, *others = row
    return SlotState(plugin, database, parse_lsn(confirmed) if confirmed else 0, *others)


def _require_committed_alone(name: str, found: SlotState) -> None:
    if found.two_phase:
        raise DatabaseSetupError(
            f"replication slot {name} was made with two_phase and tells of transactions before they are committed; "
            "drop it and make it without, or leave it to the stream to make one"
        )


def require_readable(session: Session, slot: str, after: int, *, way_out: str = START_OVER) -> SlotState:
    """The slot, which still holds every change after the LSN `after`; DataLossError that says what is lost."""
    found = find(session, slot)
    if found is None:
        raise DataLossError(
            f"replication slot {slot} does not exist any more; the changes after {format_lsn(after)} are gone. "
            f"{way_out}"
        )
    if found.plugin != "pgoutput":
        raise DataLossError(
            f"replication slot {slot} uses {found.plugin or 'no plugin'} and not pgoutput, so it is not the slot "
            f"that was read. {way_out}"
        )
    _require_committed_alone(slot, found)
    if found.wal_status == "lost":
        reason = f", {found.invalidation}" if found.invalidation else ""
        keep = _WHAT_KEEPS_IT.get(found.invalidation or "", "raise max_slot_wal_keep_size")
        raise DataLossError(
            f"replication slot {slot} was invalidated (wal_status=lost{reason}); the changes after "
            f"{format_lsn(after)} are gone. {way_out}; {keep} so that it does not happen again"
        )
    if found.confirmed > after:
        raise DataLossError(
            f"replication slot {slot} stands at {format_lsn(found.confirmed)}, beyond {format_lsn(after)}, where "
            "reading was to begin, so the changes between are gone: somebody else advanced it or made it again, or an "
            f"older checkpoint was restored. {way_out}"
        )
    return found


def make_publication(
    connector: Connector, session: Session, name: str, table: sql.Composable, *, oid: int, partitioned: bool
) -> None:
    """Publishes the table of this OID, through its root where it is partitioned; nothing where the name is taken."""
    if session.execute("SELECT 1 FROM pg_catalog.pg_publication WHERE pubname = %s", [name]).fetchone():
        return
    statement = publication_statement(session, name, table, partitioned=partitioned)
    try:
        with _saying_what_blocks(connector, session.info.backend_pid, f"publication {name}"), session.transaction():
            session.execute(statement)
            note_membership(session, name, oid)
    except (psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation):
        # The latter where the server was still making it for a driver that has died, and has been waited for.
        return
    except psycopg.errors.InsufficientPrivilege as error:
        ((role,),) = session.execute("SELECT current_user::text").fetchall()
        role, database = (sql.Identifier(text).as_string(session) for text in (role, session.info.dbname))
        raise DatabaseSetupError(
            f"the role may not publish the table ({error.diag.message_primary}). Where it owns the table, run GRANT "
            f"CREATE ON DATABASE {database} TO {role}. Else let the table's owner run: "
            f"{statement.as_string(session)}; and set publicationName={name}"
        ) from None


def publication_statement(session: Session, name: str, table: sql.Composable, *, partitioned: bool) -> sql.Composed:
    """What publishes all that a stream may carry of the table, on this server."""
    generated = (
        ", publish_generated_columns = stored" if session.info.server_version >= _GENERATED_ARE_PUBLISHED else ""
    )
    return sql.SQL("CREATE PUBLICATION {} FOR TABLE {}{} WITH (publish_via_partition_root = true{})").format(
        sql.Identifier(name), sql.SQL("" if partitioned else "ONLY "), table, sql.SQL(generated)
    )


def note_membership(session: Session, name: str, oid: int) -> None:
    """Writes into the comment of a publication of ours which membership of the table it was made with."""
    ((membership,),) = session.execute(
        "SELECT r.oid::int8 FROM pg_catalog.pg_publication_rel r JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid "
        "WHERE p.pubname = %s AND r.prrelid = %s",
        [name, oid],
    ).fetchall()
    session.execute(noting(name, membership))


def noting(name: str, membership: int) -> sql.Composed:
    """The statement that writes so."""
    comment = sql.SQL("COMMENT ON PUBLICATION {} IS {}")
    return comment.format(sql.Identifier(name), sql.Literal(f"{_NOTE}{membership}"))


def require_published(session: Session, name: str, oid: int, columns: tuple[str, ...]) -> Published:
    """As `published`; DatabaseSetupError where there is no such publication."""
    found = published(session, name, oid, columns)
    if found is None:
        raise DatabaseSetupError(
            f"publication {name} does not exist; run CREATE PUBLICATION {sql.Identifier(name).as_string(session)} FOR "
            "TABLE …, or, for a new stream, leave out publicationName to have one made"
        )
    return found


def published(session: Session, name: str, oid: int, columns: tuple[str, ...]) -> Published | None:
    """The publication of this name, None where there is none.

    Raises where it would leave out rows, columns or kinds of changes that the stream carries.
    """
    schemas = _SCHEMAS if session.info.server_version >= _SCHEMAS_ARE_PUBLISHED else ""
    query = sql.SQL(_PUBLISHED).format(schemas=sql.SQL(schemas))
    row = session.execute(query, {"oid": oid, "name": name}).fetchone()
    if row is None:
        return None
    quoted = sql.Identifier(name).as_string(session)
    if not row[0]:
        raise DatabaseSetupError(
            f"publication {name} leaves out some kinds of changes; run ALTER PUBLICATION {quoted} SET "
            "(publish = 'insert, update, delete, truncate')"
        )
    found = listed(session, name, oid)
    if found is None:
        there = session.execute("SELECT relpersistence::text FROM pg_catalog.pg_class WHERE oid = %s", [oid]).fetchone()
        if there == ("u",):
            raise TableError(
                "the table is unlogged now, so its changes are not in the log. Run ALTER TABLE … SET LOGGED, then "
                "start over with a fresh checkpointLocation and onExistingState=restart"
            )
        if there is None:
            raise TableError(
                "the table was dropped since the stream began, or dropped and made again. Start over with a fresh "
                "checkpointLocation and onExistingState=restart"
            )
        raise DatabaseSetupError(
            f"publication {name} does not publish the table under its own name; run ALTER PUBLICATION {quoted} ADD "
            "TABLE …, for a partitioned table also ALTER PUBLICATION … SET (publish_via_partition_root = true)"
        )
    if found.get("rowfilter"):
        raise DatabaseSetupError(f"publication {name} filters the table's rows; publish the table without WHERE")
    missing = set(columns) - set(found.get("attnames") or columns)
    if missing:
        raise DatabaseSetupError(
            f"publication {name} does not publish column {', '.join(sorted(missing))}; publish it, or leave it out "
            "with the option columns"
        )
    return Published(row[1], row[2], tuple(row[3]), _noted(session, name))


def make_slot(connector: Connector, session: Session, name: str) -> None:
    """A logical slot for pgoutput; where there is one by this name, it must be one. Says what it waits for."""
    found = find(session, name)
    if found is not None and not found.confirmed:
        _end_making(session, name)
        found = find(session, name)
    if found is not None:
        require_usable(session, name, found)
        return
    try:
        with _saying_what_blocks(connector, session.info.backend_pid, f"replication slot {name}"):
            session.execute("SELECT pg_catalog.pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
    except psycopg.errors.DuplicateObject:
        return
    except psycopg.errors.ConfigurationLimitExceeded as error:
        raise DatabaseSetupError(
            f"{error.diag.message_primary}: drop a slot that is not used any more (SELECT slot_name, active, "
            f"confirmed_flush_lsn FROM pg_replication_slots; {BETWEEN_LOOKS}), or raise max_replication_slots and "
            "restart the server"
        ) from None
    except psycopg.errors.ObjectNotInPrerequisiteState as error:
        setting = "max_replication_slots = 10" if "max_replication_slots" in str(error) else "wal_level = 'logical'"
        raise DatabaseSetupError(
            f"{error.diag.message_primary}; run ALTER SYSTEM SET {setting} and restart the server"
        ) from None
    except psycopg.errors.InsufficientPrivilege as error:
        raise DatabaseSetupError(
            f"{error.diag.message_primary}; let a superuser run ALTER ROLE {session.info.user} REPLICATION"
        ) from None


def require_usable(session: Session, name: str, found: SlotState) -> None:
    """Raises DatabaseSetupError unless a stream may begin with this slot, which somebody has made."""
    if found.plugin != "pgoutput":
        raise DatabaseSetupError(
            f"replication slot {name} exists and uses {found.plugin or 'no plugin'}; choose another slotName"
        )
    if found.database != session.info.dbname:
        raise DatabaseSetupError(
            f"replication slot {name} is of database {found.database}, and url names {session.info.dbname}; choose "
            "another slotName"
        )
    _require_committed_alone(name, found)


def _end_making(session: Session, name: str) -> None:
    """Ends a session that still makes this slot: its client has died, and the server does not notice while it waits.

    The slot would come to be some time later, and would not hold what has happened until then.
    """
    session.execute(
        "SELECT pg_catalog.pg_terminate_backend(active_pid, 5000) FROM pg_catalog.pg_replication_slots "
        "WHERE slot_name = %s AND confirmed_flush_lsn IS NULL AND active",
        [name],
    )


@contextmanager
def _saying_what_blocks(connector: Connector, pid: int, what: str) -> Iterator[None]:
    """While the body waits in the server, logs every few seconds which sessions it waits for."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(SAY_AFTER):
            try:
                with translating(), connector.session() as session:
                    rows = session.execute(
                        "SELECT pid FROM pg_catalog.pg_stat_activity "
                        "WHERE pid <> %(pid)s AND (backend_xid IS NOT NULL OR pid = ANY (pg_blocking_pids(%(pid)s))) "
                        "ORDER BY xact_start",
                        {"pid": pid},
                    ).fetchall()
                    prepared = session.execute("SELECT gid FROM pg_catalog.pg_prepared_xacts ORDER BY prepared")
                    gids = "".join(f", {sql.Literal(row[0]).as_string(session)}" for row in prepared.fetchall())
            except Exception as error:  # noqa: BLE001 - a courtesy must not end the stream
                logger.warning("still waiting for %s (%s)", what, error)
                continue
            pids = ", ".join(str(row[0]) for row in rows) or "none"
            also = f"; prepared and neither committed nor rolled back: {gids[2:]}" if gids else ""
            logger.warning(
                "waiting for %s: the server waits for open transactions (of its processes %s%s)", what, pids, also
            )

    threading.Thread(target=watch, name="backfill-waiting", daemon=True).start()
    try:
        yield
    finally:
        done.set()


def advance(session: Session, slot: str, to: int) -> None:
    """Lets the server forget what lies before the LSN `to`. A slot that is further already stays there.

    Raises DataLossError where the slot was invalidated: servers before 16 only say that it cannot be advanced.
    """
    found = find(session, slot)
    if found is not None and found.confirmed < to:
        require_readable(session, slot, to)
        with translating(About.SLOT):
            session.execute("SELECT pg_catalog.pg_replication_slot_advance(%s, %s::pg_lsn)", [slot, format_lsn(to)])


def figures(session: Session, slot: str, reached: int | None, complete_until: int | None) -> dict[str, int]:
    """How far the present is from the LSN `reached` and the moment `complete_until` (µs since 1970), and how much of
    the log the slot keeps; those that are known."""
    row = session.execute(
        "SELECT pg_current_wal_insert_lsn()::text, "
        "(SELECT restart_lsn::text FROM pg_catalog.pg_replication_slots WHERE slot_name = %s), "
        "floor(extract(epoch FROM clock_timestamp()) - %s::bigint / 1000000.0)::bigint",
        [slot, complete_until],
    ).fetchone()
    if row is None:
        return {}
    end = parse_lsn(row[0])
    found = {} if reached is None else {"lag_bytes": max(0, end - reached)}
    if row[2] is not None:
        found["lag_seconds"] = max(0, row[2])
    if row[1]:
        found["retained_bytes"] = end - parse_lsn(row[1])
    return found


def drop_if_lost(session: Session, slot: str, publication: str | None) -> None:
    """Drops a slot that nothing can be read from any more, so that it can be made again.

    `publication` is one of ours: up to version 17 changes from a time when there was none make the log unreadable.
    """
    found = find(session, slot)
    remade = publication is not None and session.info.server_version < _SILENT and _noted(session, publication) is None
    if found is not None and (found.wal_status == "lost" or remade):
        drop(session, slot, None)


def _noted(session: Session, publication: str) -> int | None:
    """The membership that the comment of a publication of ours tells of."""
    query = "SELECT pg_catalog.obj_description(oid, 'pg_publication') FROM pg_catalog.pg_publication WHERE pubname = %s"
    row = session.execute(query, [publication]).fetchone()
    noted = re.fullmatch(rf"{_NOTE}(\d+)", (row and row[0]) or "")
    return int(noted[1]) if noted else None


def drop(session: Session, slot: str, publication: str | None) -> tuple[str, ...]:
    """Drops the slot, ending the session that reads it, and the publication; those that are gone are fine, and named
    as such. So is a publication of this name that a person made, as `make_publication` may have advised: it is left.

    Raises DatabaseSetupError, and drops nothing, where the slot is of another database, as the publication then is.
    """
    found = find(session, slot)
    if found is not None and found.database != session.info.dbname:
        raise DatabaseSetupError(
            f"replication slot {slot} is of database {found.database}, and url names {session.info.dbname}; nothing "
            f"was dropped. Name {found.database} in url"
        )
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
    named = f"slot {slot}" + ("" if found is not None else " (gone already)")
    return (named,) if publication is None else (named, _drop_publication(session, publication))


def _drop_publication(session: Session, publication: str) -> str:
    query = "SELECT 1 FROM pg_catalog.pg_publication WHERE pubname = %s"
    if session.execute(query, [publication]).fetchone() is None:
        return f"publication {publication} (gone already)"
    if _noted(session, publication) is None:
        return f"publication {publication} (left: not made by a stream)"
    session.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(publication)))
    return f"publication {publication}"
