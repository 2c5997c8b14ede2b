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
    r" certificate|private key|SSL was required|encryption, but it was required|channel binding|"
    r" alert (unknown ca|protocol version|handshake failure)|unsupported protocol|only supports protocol version|"
    r"authentication method requirement|authentication mechanisms are supported|requires OAuth|"
    r"invalid (connection option|URI|port|dsn|SSL protocol version range|\w+ value)|missing \"=\"|bad value for|"
    r"requirepeer|GSSAPI|weak sslmode|require_auth method|is greater than \"max_protocol_version\"|"
    r"host name must be specified|socket path .* is too long|could not match|unrecognized configuration parameter|"
    r"invalid (value for parameter|command-line argument|\"\w+\" value)",
    re.IGNORECASE,
)
"""Reasons in the words of the server, of libpq and of its TLS library; hardly any host or database is named so. Each
asks for something to be changed.
"""

_NO_MEMORY_HERE: Final = re.compile(r"out of memory|cannot allocate memory|failed to map segment", re.IGNORECASE)
_NOT_LOADED: Final = re.compile(r"could not load", re.IGNORECASE)
"""These two in the words of libpq, of the system's loader and of ADBC's."""

_BY_SERVER: Final = re.compile(r"(FATAL|PANIC): |could not fork new process")
"""Tells the server's own errors, which may be worded the same, and come without an SQLSTATE before a session begins."""

_TOO_MANY_SESSIONS: Final = re.compile(r"too many (clients|connections)|connection slots are reserved", re.IGNORECASE)
_NO_PARAMETERS: Final = re.compile(r"unsupported startup parameter")

_ALSO_CHECK: Final = {
    "SSL error: unexpected eof": "; with sslnegotiation=direct, that it is PostgreSQL 17 or newer and has ssl = on",
    "timeout expired": "; if it is far away or busy, put a longer connect_timeout into url (the default is 10 seconds)",
}
"""What else to look at, by what the error says."""

_FOR_RECOVERY: Final = re.compile(r"conflict with recovery")

FOR_RECOVERY: Final = (
    "; a standby cancels a query that reads what its primary has removed: let a superuser set hot_standby_feedback = "
    "on there, or a longer max_standby_streaming_delay, or point url at the primary"
)
"""What to do where a standby has ended a statement, or its session, which it does to follow its primary."""

_SERVICE: Final = re.compile(r"service file|definition of service", re.IGNORECASE)
_NO_PASSWORD_ON_SOCKET: Final = re.compile(r"on socket .*no password supplied")

_OF_A_HOST: Final = (
    re.compile(
        r"^- host: '?(?P<host>[^',]*)'?, port: '?(?P<port>[^',]*)'?, hostaddr: \S+: (?P<message>.*)$", re.MULTILINE
    ),
    re.compile(
        r'connection to server (?:at|on socket) "(?P<host>[^"]*)".*?(?:, port (?P<port>\d+))? failed: (?P<message>.*)'
    ),
)
"""What psycopg and libpq say of each host where they have tried several, or several addresses of one."""

_BEFORE_REASON: Final = re.compile(
    r"^(.*connection to server .*? failed: |connection (failed|is bad): )?((FATAL|PANIC): +)?"
)
"""What stands before the reason in that."""

_NOT_THE_ONE: Final = re.compile(r"in hot standby mode|session is (not )?read-only")
"""What is said of a host that answers but is not the one wanted, such as a standby where the primary is."""


def without_state(error: Exception, message: str) -> BackfillError:
    """The error as one of ours.

    With several hosts it tells what is said of each, and counts as refused for good only where that is said of all that
    are wanted: the one that matters may be on its way back.
    """
    hosts = _messages_by_host(str(error))
    if len(hosts) < 2:
        return _of_one(error, message)
    messages = "; ".join(f"{host}: {message}" for host, message in hosts.items())
    wanted = [message for message in hosts.values() if not _NOT_THE_ONE.search(message)]
    if wanted and all(_REFUSED_FOR_GOOD.search(message) for message in wanted):
        return _of_one(error, messages)
    return _lost(messages)


def _messages_by_host(text: str) -> dict[str, str]:
    """What is said of each host, in the order in which they were tried; one may have several addresses."""
    found: dict[str, dict[str, None]] = {}
    for one in next((every for form in _OF_A_HOST if (every := list(form.finditer(text)))), []):
        host = f"{one['host']}:{one['port']}" if one["port"] else one["host"]
        found.setdefault(host, {})[_BEFORE_REASON.sub("", one["message"])] = None
    return {host: ", ".join(messages) for host, messages in found.items()}


def _of_one(error: Exception, message: str) -> BackfillError:
    message = message.removeprefix("connection failed: ")
    if _NO_PARAMETERS.search(message):
        return behind_a_pooler(message)
    if _SERVICE.search(message):
        return DatabaseSetupError(
            f"the service that url or PGSERVICE names cannot be used: {message}. The driver and every executor need "
            "its file, as ~/.pg_service.conf or where PGSERVICEFILE says"
        )
    if _NO_PASSWORD_ON_SOCKET.search(message):
        return DatabaseSetupError(
            f"the database refused the connection: {message}. If a passfile has the password, put * in place of its "
            "host: the two drivers' libraries look for their different socket folders as localhost"
        )
    if _REFUSED_FOR_GOOD.search(message):
        return DatabaseSetupError(
            f"the database refused the connection: {message}; check the options url, user and password, and that the "
            "server accepts them: pg_hba.conf, ALTER ROLE … LOGIN VALID UNTIL 'infinity', GRANT CONNECT ON DATABASE "
            "…, ALTER DATABASE … ALLOW_CONNECTIONS true"
        )
    by_server = _BY_SERVER.search(str(error)) is not None
    if _NOT_LOADED.search(message) and by_server:
        return DatabaseSetupError(
            f"the server cannot begin a session: {message}. Check the libraries in session_preload_libraries and "
            "local_preload_libraries, also those set for the role and the database (ALTER ROLE … RESET …)"
        )
    if _NO_MEMORY_HERE.search(message) and not by_server:
        return short_of_memory(message)
    if _NOT_LOADED.search(message):
        return DriverError(
            f"the database driver cannot be used: {message}; install it again, with pip install "
            "'pyspark-backfill[postgres]'"
        )
    if isinstance(error, psycopg.Error) and not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return DatabaseSetupError(f"psycopg could not run a statement of the stream: {message}; please report this")
    return _lost(message)


def _lost(message: str) -> ConnectionLostError:
    if _TOO_MANY_SESSIONS.search(message):
        return ConnectionLostError(
            f"no connection to the database: {message}. Each stream takes two sessions, and more while it reads its "
            "table. End sessions that nobody needs, or let a superuser run ALTER SYSTEM SET max_connections = 300 "
            "and restart the server; if the limit is that of the role or the database, ALTER ROLE … CONNECTION LIMIT "
            "or ALTER DATABASE … CONNECTION LIMIT"
        )
    if _FOR_RECOVERY.search(message):
        return ConnectionLostError(f"{message}{FOR_RECOVERY}")
    known = next((words for sign, words in _ALSO_CHECK.items() if re.search(sign, message)), "")
    return ConnectionLostError(f"no connection to the database: {message}; check url, and that the server is up{known}")


def behind_a_pooler(found: str) -> DatabaseSetupError:
    """The error for a connection pooler that does not pass on a session's settings; `found` says how that showed."""
    return DatabaseSetupError(
        f"a connection pooler did not pass on the settings under which values are read: {found}. A stream needs its "
        "own sessions on the server: put the host and port of PostgreSQL itself into the option url"
    )
