"""How to reach one database, and the settings under which every session reads it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import adbc_driver_postgresql.dbapi
import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from backfill.upstream.postgres.failures import translating

SETTINGS: Final = {
    "DateStyle": "ISO",
    "IntervalStyle": "iso_8601",
    "TimeZone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
}
"""What gives a value the same text in every session, whatever the role's or the database's own settings are."""


# The setting is new in version 17, and naming it at the start of a session would be refused by older ones.
_NO_TIMEOUT: Final = (
    "SELECT pg_catalog.set_config(name, '0', false) FROM pg_catalog.pg_settings WHERE name = 'transaction_timeout'"
)


@dataclass(frozen=True, slots=True)
class Connector:
    """Opens sessions of one role on one database. Picklable, because executors open their own."""

    conninfo: str = field(repr=False)
    init_statement: str = ""

    @classmethod
    def of(cls, url: str, *, user: str, password: str, init_statement: str) -> Connector:
        given = {key: str(value) for key, value in conninfo_to_dict(url).items()}
        if user:
            given["user"] = user
        if password:
            given["password"] = password
        given.setdefault("connect_timeout", "10")
        given.setdefault("fallback_application_name", "backfill")
        given["client_encoding"] = "UTF8"
        settings = " ".join(f"-c {name}={value}" for name, value in SETTINGS.items())
        given["options"] = f"{given.get('options', '')} {settings}".strip()
        return cls(make_conninfo("", **given), init_statement)

    def session(self) -> psycopg.Connection[tuple[Any, ...]]:
        """A session for control statements, in autocommit."""
        with translating():
            connection = psycopg.connect(self.conninfo, autocommit=True)
            connection.execute(_NO_TIMEOUT)
            if self.init_statement:
                connection.execute(sql.SQL(self.init_statement))
            return connection

    def arrow_session(self) -> adbc_driver_postgresql.dbapi.Connection:
        """A session for bulk reads as Arrow, in autocommit."""
        with translating():
            connection = adbc_driver_postgresql.dbapi.connect(self.conninfo, autocommit=True)
            with connection.cursor() as cursor:
                cursor.execute(_NO_TIMEOUT)
                if self.init_statement:
                    cursor.execute(self.init_statement)
            return connection
