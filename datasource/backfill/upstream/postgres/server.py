"""Which server this is: enough to recognise it again, and to know what it can do."""

from __future__ import annotations

from typing import Any, Final

from psycopg import Connection
from psycopg.rows import class_row

from backfill.errors import DatabaseSetupError
from backfill.upstream.postgres.description import ServerDescription

OLDEST: Final = 140000

# In recovery there is no current WAL file; elsewhere its name begins with the timeline, which the control file
# only learns at the first checkpoint after a promotion.
_SERVER: Final = """
    SELECT pg_catalog.current_setting('server_version_num')::int AS version,
           pg_catalog.current_setting('server_version') AS version_text,
           (pg_catalog.pg_control_system()).system_identifier AS system_identifier,
           CASE WHEN pg_catalog.pg_is_in_recovery() THEN (pg_catalog.pg_control_checkpoint()).timeline_id
                ELSE ('x' || pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8)
                     )::pg_catalog.bit(32)::int
           END AS timeline,
           pg_catalog.current_setting('wal_level') AS wal_level,
           pg_catalog.pg_is_in_recovery() AS in_recovery,
           d.datname AS database,
           d.oid::int8 AS database_oid,
           pg_catalog.current_setting('server_encoding') AS encoding
    FROM pg_catalog.pg_database d
    WHERE d.datname = pg_catalog.current_database()
"""


def read_server(conn: Connection[Any]) -> ServerDescription:
    """Describes the server behind the connection; a version that is too old is refused."""
    if conn.info.server_version < OLDEST:
        raise DatabaseSetupError(
            f"the server is PostgreSQL {conn.info.parameter_status('server_version')}; "
            f"PostgreSQL {OLDEST // 10000} or later is needed"
        )
    with conn.cursor(row_factory=class_row(ServerDescription)) as cursor:
        (server,) = cursor.execute(_SERVER).fetchall()
    return server
