"""What every session is set to, so that it reads values as every other session does, and each side notices when the
other is gone.

Most of it is in the connection string, so that a session begins with it; the rest is in its first statement.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from psycopg import sql

_SETTINGS: Final = {
    "DateStyle": "ISO",
    "IntervalStyle": "iso_8601",
    "TimeZone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "xmloption": "content",  # or a sink could not write every xml that there is
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "array_nulls": "on",
    "quote_all_identifiers": "off",  # or the ADBC driver would know no type
    "row_security": "off",  # rows that a policy hides are an error then
    "gin_fuzzy_search_limit": "0",  # or a condition would be met by a random part of its rows
    "default_transaction_isolation": r"read\ committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
}
"""What gives a value the same text in every session, whatever the role's or the database's own settings are, and lets
the session make a slot and a publication. A space is escaped, as libpq wants it.
"""

_ARRIVED: Final = "backfill.settings"
"""A setting that is made together with these, and asked for at once: a connection pooler may leave them all out without
a word (PgBouncer with ignore_startup_parameters), and then values would have other texts.
"""

MONETARY: Final = ("lc_monetary", "C")
"""What gives amounts of money the same text. It is set after a session has begun, so that the database's own setting
can still be asked for (`money`).
"""

NETWORK: Final = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
"""When the server is given up, unless the url says otherwise; in seconds, the last one in milliseconds.

A server that has vanished with its machine says nothing, and by default a kernel checks after two hours. While data
that was sent has not been acknowledged it does not check at all, and sends it again for a quarter of an hour.
"""

_SERVER_KEEPALIVES: Final = {
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}
"""The same for the server, which would keep the session, and its snapshot, of a driver that has vanished."""

_ANSWERS_TAKEN_AT_ONCE: Final = {"tcp_user_timeout": "60000"}
"""When the server gives up a client that does not acknowledge what it was sent, in milliseconds; not for a session
whose rows may wait (`where_rows_wait`).
"""

# The setting is new in version 17, and naming it at the start of a session would be refused by older ones.
_NO_TIMEOUT: Final = (
    "SELECT pg_catalog.set_config(name, '0', false) FROM pg_catalog.pg_settings WHERE name = 'transaction_timeout'"
)
# In the midst of a statement a server checks whether its client is there only where it is told to, which is possible
# where the platform can tell. Else a slot stays busy until all that a killed driver has asked for is decoded.
_LOOKING: Final = (
    "CASE WHEN pg_catalog.version() LIKE '%-linux-%' "
    "AND pg_catalog.current_setting('client_connection_check_interval') = '0' "
    "THEN pg_catalog.set_config('client_connection_check_interval', '10s', false) END"
)
_READING: Final = (
    sql.SQL(", ")
    .join(
        sql.SQL("pg_catalog.set_config({}, {}, false)").format(sql.Literal(name), sql.Literal(value))
        for name, value in [*_SETTINGS.items(), MONETARY, ("client_encoding", "UTF8")]
        if not name.endswith("_timeout") and not name.startswith("default_transaction")
    )
    .as_string(None)
)
AGAIN: Final = f"SELECT {_READING}"
"""Comes after a statement of the user's own, which may limit time and rights, but not change what is read."""

# Sets again what the connection string does, because libpq also sends PGTZ and PGDATESTYLE, which take precedence.
FIRST: Final = (
    f"SELECT pg_catalog.current_setting('{_ARRIVED}', true) AS arrived, ({_NO_TIMEOUT}) AS timeout, "
    f"{_READING}, {_LOOKING}"
)
_LET_GO: Final = "pg_catalog.octet_length(pg_catalog.repeat(pg_catalog.repeat(' ', 1000), 1000))"
"""Has the server take a megabyte of memory, and give it back. glibc learns from that not to return so much to the
kernel. Else it returns the memory of each row that took more than 128 kB, because it learns only from larger pieces,
and gets it anew for the next row: tables of some hundred columns, or of values of some 10 kB, were sent two to six
times as slowly.
"""

FIRST_OF_BULK: Final = f"{FIRST}, pg_catalog.repeat(' ', 120000), {_LET_GO}"
"""The same where many rows are to be read. libpq takes from the socket what its buffer has room for, which is 16 kB
until something larger arrives, and then keeps the larger buffer. Else a tenth of a reader's work is system calls.
"""


def session_options(own: str) -> str:
    """The parameter `options` of the connection string; `own` is a person's, which may set all but `_SETTINGS`."""
    ours = {**_SETTINGS, _ARRIVED: "1"}
    return " ".join([_as_options(_ANSWERS_TAKEN_AT_ONCE), _as_options(_SERVER_KEEPALIVES), own, _as_options(ours)])


def where_rows_wait(given: str) -> str:
    """The same `options` for a session whose rows may rightly wait for minutes to be taken, whatever the server's own
    patience is.
    """
    patient = _as_options(dict.fromkeys(_ANSWERS_TAKEN_AT_ONCE, "0"))
    return patient + given.removeprefix(_as_options(_ANSWERS_TAKEN_AT_ONCE))


def _as_options(settings: Mapping[str, str]) -> str:
    return " ".join(f"-c {name}={value}" for name, value in settings.items())
