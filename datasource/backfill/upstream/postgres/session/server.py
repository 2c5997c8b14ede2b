"""Which server this is: enough to recognise it again, and to know what it can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from psycopg.rows import class_row

from backfill.errors import ConnectionLostError, DatabaseSetupError, DataLossError, OtherServerError
from backfill.upstream.postgres.description import ServerDescription
from backfill.upstream.postgres.position import Lsn, format_lsn, parse_lsn
from backfill.upstream.postgres.session.arrow_session import ArrowSession
from backfill.upstream.postgres.session.connection import Asked, Session, one_row
from backfill.wording import ELSEWHERE, FRESH_START

OLDEST: Final = 140000

START_OVER_OR_GO_ON: Final = (
    f"Start over with {FRESH_START}, or start the query again with failOnDataLoss=false to go on without the changes "
    "that are lost"
)
"""The advice for a stream that has lost changes. It can only be told to go on without them when it is started."""

NO_WAY_ON: Final = f"so a stream cannot go on, whatever failOnDataLoss says. Start over, a stream with {FRESH_START}"

_TIMELINE: Final = """
    ('x' || pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8))
        ::pg_catalog.bit(32)::int
"""

# In recovery there is no current WAL file; elsewhere its name begins with the timeline, which the control file
# only learns at the first checkpoint after a promotion.
_SERVER: Final = f"""
    SELECT (pg_catalog.pg_control_system()).system_identifier AS system_identifier,
           CASE WHEN pg_catalog.pg_is_in_recovery() THEN (pg_catalog.pg_control_checkpoint()).timeline_id
                ELSE {_TIMELINE}
           END AS timeline,
           pg_catalog.current_setting('wal_level') AS wal_level,
           pg_catalog.current_setting('effective_wal_level', true) IS NOT NULL AS raises_wal_level,
           pg_catalog.pg_is_in_recovery() AS in_recovery,
           CASE WHEN pg_catalog.pg_is_in_recovery() THEN false
                ELSE pg_catalog.pg_current_wal_insert_lsn() >= '80000000/0'
           END AS log_too_long,
           coalesce(pg_catalog.current_setting('old_snapshot_threshold', true), '-1') AS old_snapshots
"""

# A standby has no timeline of its own.
ORIGIN: Final = f"""
    SELECT (pg_catalog.pg_control_system()).system_identifier::text,
           CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN ({_TIMELINE})::text END
"""
"""Asks a session for what `require_origin` looks at."""

_LOG: Final = f"""
    SELECT (pg_catalog.pg_control_system()).system_identifier::text, ({_TIMELINE})::text,
           pg_catalog.pg_current_wal_insert_lsn()::text
"""


def read_server(session: Session) -> ServerDescription:
    """Describes the server behind the connection; a version that is too old is refused."""
    if session.info.server_version < OLDEST:
        raise DatabaseSetupError(
            f"the server is PostgreSQL {session.info.parameter_status('server_version')}; "
            f"PostgreSQL {OLDEST // 10000} or later is needed"
        )
    with session.cursor(row_factory=class_row(ServerDescription)) as cursor:
        (server,) = cursor.execute(_SERVER).fetchall()
    return server


STANDBY: Final = "the server is a standby, and a stream needs the primary; point url at the primary"


def require_primary(server: ServerDescription) -> None:
    if server.in_recovery:
        raise DatabaseSetupError(STANDBY)


def require_countable(server: ServerDescription) -> None:
    """Refuses a server whose log has come so far that an LSN does not fit into a bigint: nobody writes that much, but
    `pg_resetwal` puts the log anywhere.
    """
    if server.log_too_long:
        raise DatabaseSetupError(
            "the server's log has reached 80000000/0, and later LSNs do not fit into _commit_version, a bigint; only "
            "pg_resetwal leads there. Dump the database and restore it into a new cluster, whose log begins anew"
        )


def require_primary_again(session: Session) -> None:
    """As `require_primary`, for a further session of a stream, with an error that is tried again: a server may be a
    standby for a moment, while it is restored or another one becomes the primary. It says what it is when a session
    begins.
    """
    if session.info.parameter_status("in_hot_standby") == "on":
        raise ConnectionLostError(STANDBY)


def require_logical(server: ServerDescription) -> None:
    """Refuses a server whose log cannot be decoded."""
    if server.wal_level != "logical" and not (server.raises_wal_level and server.wal_level == "replica"):
        raise DatabaseSetupError(
            f"wal_level is {server.wal_level}, expected logical; run ALTER SYSTEM SET wal_level = 'logical' and "
            "restart the server. startupMode=snapshot does not need it"
        )


def require_lasting_snapshots(server: ServerDescription) -> None:
    """Refuses a server that removes rows which an exported snapshot still shows.

    A session that has had the snapshot all the while gets an error. One that imports it later does not, because the
    server takes it for a new snapshot there: rows are missing without a word.
    """
    if server.old_snapshots != "-1":
        raise DatabaseSetupError(
            f"old_snapshot_threshold is {server.old_snapshots}: a read that takes longer would lack rows. Run ALTER "
            "SYSTEM SET old_snapshot_threshold = -1 and restart the server"
        )


def ask_log(session: Session) -> Asked:
    """Asks for what `require_log` looks at."""
    return session.execute(_LOG)


def require_log(asked: Asked, *, system: str, reached: Lsn) -> str:
    """The timeline of this primary; DataLossError unless its log is of `system` and comes as far as the LSN `reached`.

    Otherwise the stream cannot even go on without what is lost: in another system's log a position means nothing, and
    in a shorter log new changes would lie before it, and be left out as having been read. A server whose files were put
    back as they were some time ago is on the same timeline; only its log tells, for as long as that is shorter.
    """
    found, timeline, end = one_row(asked)
    if found != system:
        raise DataLossError(
            f"the log was read on system {system}, and this server is system {found}. Point url at the former; or, if "
            f"that is gone for good, start over, a stream with {ELSEWHERE}"
        )
    if parse_lsn(end) < reached:
        raise DataLossError(
            f"the log was read up to {format_lsn(reached)}, and this server's log ends at {end}: it was restored to "
            f"an earlier point in time, or it is a standby that was promoted without the end of the log, {NO_WAY_ON}"
        )
    return str(timeline)


def require_log_of(session: ArrowSession, system: str, timeline: str) -> None:
    """Checks the server of a session in which the log is read: raises OtherServerError where it has another log, and
    ConnectionLostError where it is a standby.

    Other sessions may be on another server: a primary that stayed behind may be up again, and where url leads to it
    first, a new session is on it while earlier ones are on the server that took its place. A standby may have a slot of
    this name, which can be read from PostgreSQL 16 on, and tells only what the standby has come to by then.
    """
    if session.log_of == (system, timeline):
        return
    session.execute(ORIGIN)
    require_origin(one_row(session), system, timeline)
    session.log_of = system, timeline


def require_origin(row: Sequence[str | None], system: str, timeline: str) -> None:
    """As `require_log_of`, by the row that any session answers to ORIGIN with."""
    found, found_timeline = row
    if found_timeline is None:
        raise ConnectionLostError(STANDBY)
    if found != system or found_timeline != timeline:
        raise OtherServerError(
            f"the stream reads timeline {timeline} of system {system}, and a server with timeline {found_timeline} of "
            f"system {found} has answered as well: url leads to both, as when an old primary is up again beside its "
            "successor. Point url at the primary alone"
        )
