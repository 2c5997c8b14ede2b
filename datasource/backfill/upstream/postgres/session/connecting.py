"""What errors without an SQLSTATE mean: most often there is no connection."""

from __future__ import annotations

import re
from typing import Final

import psycopg

from backfill.errors import BackfillError, ConnectionLostError, DatabaseSetupError, DriverError
from backfill.scarcity import short_of_memory

_REFUSED_FOR_GOOD: Final = re.compile(
    r"authentication failed|no password supplied|does not exist|no pg_hba\.conf entry|pg_hba\.conf rejects|"
    r"permission denied|is not permitted to log in|not currently accepting connections|"
    r" certificate|private key|alert unknown ca|SSL was required|encryption, but it was required|channel binding|"
    r"authentication method requirement|service file|definition of service|"
    r"invalid (connection option|URI|port|dsn|\w+ value)|missing \"=\"|bad value for|requirepeer|GSSAPI|"
    r"could not match|unrecognized configuration parameter|"
    r"invalid (value for parameter|command-line argument|\"\w+\" value)",
    re.IGNORECASE,
)
"""In the words of the server, of libpq and of its TLS library, as no host or database is likely to be named. Each asks
for something to be changed.
"""

_NO_MEMORY_HERE: Final = re.compile(r"out of memory|cannot allocate memory|failed to map segment", re.IGNORECASE)
_NOT_LOADED: Final = re.compile(r"could not load", re.IGNORECASE)
"""In the words of libpq, of the system's loader and of ADBC's."""

_BY_SERVER: Final = re.compile(r"(FATAL|PANIC): |could not fork new process")
"""What the server says of itself in the same words; it may say it before a session has begun, without an SQLSTATE."""

_TOO_MANY_SESSIONS: Final = re.compile(r"too many (clients|connections)|connection slots are reserved", re.IGNORECASE)
_NO_PARAMETERS: Final = re.compile(r"unsupported startup parameter")


def without_state(error: Exception, message: str) -> BackfillError:
    """The error as one of ours."""
    message = message.removeprefix("connection failed: ")
    if _NO_PARAMETERS.search(message):
        return behind_a_pooler(message)
    if _REFUSED_FOR_GOOD.search(message):
        return DatabaseSetupError(
            f"the database refused the connection: {message}; check the options url, user and password, and that the "
            "server lets them in: pg_hba.conf, ALTER ROLE … LOGIN, ALTER DATABASE … ALLOW_CONNECTIONS true"
        )
    by_server = _BY_SERVER.search(str(error)) is not None
    if _NOT_LOADED.search(message) and by_server:
        return DatabaseSetupError(
            f"the server cannot begin a session: {message}; it loads what its settings session_preload_libraries and "
            "local_preload_libraries name, also those of the role and the database (ALTER ROLE … RESET …)"
        )
    if _NO_MEMORY_HERE.search(message) and not by_server:
        return short_of_memory(message)
    if _NOT_LOADED.search(message):
        return DriverError(
            f"the database driver cannot be used: {message}; install it again, with pip install "
            "'pyspark-backfill[postgres]'"
        )
    if isinstance(error, psycopg.Error) and not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return DatabaseSetupError(
            f"psycopg could not carry out a statement of the stream: {message}; please report this"
        )
    if _TOO_MANY_SESSIONS.search(message):
        return ConnectionLostError(
            f"no connection to the database: {message}. Each stream takes two sessions, and while it reads its table "
            "some more. End sessions that nobody needs, or let a superuser run ALTER SYSTEM SET max_connections = 300 "
            "and restart the server; where the limit is that of the role or the database, ALTER ROLE … CONNECTION "
            "LIMIT or ALTER DATABASE … CONNECTION LIMIT"
        )
    return ConnectionLostError(f"no connection to the database: {message}; check url, and that the server is up")


def behind_a_pooler(found: str) -> DatabaseSetupError:
    """The error for a connection pooler that does not pass on a session's settings; `found` says how that showed."""
    return DatabaseSetupError(
        f"a connection pooler does not pass on the settings under which values are read: {found}. A stream needs "
        "sessions of its own on the server: put the host and port of PostgreSQL itself into the option url"
    )
