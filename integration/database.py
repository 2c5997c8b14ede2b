"""A database of its own for a test."""

from __future__ import annotations

import secrets
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from integration.servers.address import as_uri

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from integration.servers.server import Server

PATIENCE = 60.0
"""Seconds for terminated backends to let go of a database and its replication slots."""

Row = tuple[Any, ...]
"""A row of any query: only the query knows what its columns are."""


@dataclass(frozen=True)
class Database:
    """A database on a server, with the role that may do everything."""

    server: Server
    name: str

    @property
    def dsn(self) -> str:
        """The URI that leads here, over TCP."""
        return as_uri(self.server.dsn, dbname=self.name)

    @property
    def options(self) -> dict[str, str]:
        """The Spark options that lead here: `url`, and `password` where the server wants one."""
        given = conninfo_to_dict(self.dsn)
        password = {"password": str(given["password"])} if "password" in given else {}
        return {"url": as_uri(self.dsn, password=None), **password}

    def url(self, folder: Path) -> str:
        """The Spark option `url` that suffices to connect: a password, where wanted, is in a file in `folder`."""
        password = conninfo_to_dict(self.dsn).get("password")
        if password is None:
            return self.options["url"]
        file = folder / "pgpass"
        file.write_text(f"*:*:*:*:{password}\n")
        file.chmod(0o600)
        return as_uri(self.dsn, password=None, passfile=str(file))

    def login(self) -> dict[str, str]:
        """The Spark options `user` and `password` of a new role, which may do everything and goes with the database.

        This gives tests a password to look for that every server takes, whether it asks for one or not.
        """
        password = f"hunter-{secrets.token_hex(8)}"
        self.execute(f"CREATE ROLE {self.name} SUPERUSER LOGIN PASSWORD '{password}'")
        return {"user": self.name, "password": password}

    def connect(self, **parameters: Any) -> psycopg.Connection[Row]:
        """A connection; `parameters` are those of `psycopg.connect`."""
        return psycopg.connect(self.dsn, **{"client_encoding": "UTF8", **parameters})

    def execute(self, query: str, parameters: Sequence[object] | None = None) -> list[Row]:
        """Run a query, or several without parameters, on a connection of its own and commit; returns its rows."""
        with self.connect(autocommit=True) as connection:
            cursor = connection.execute(query.encode(), parameters)
            return cursor.fetchall() if cursor.description else []


@contextmanager
def temporary_database(server: Server) -> Iterator[Database]:
    """A new, empty database; at the end it is dropped, with its connections, slots and prepared transactions."""
    database = create(server)
    try:
        yield database
    finally:
        drop(database)


def new_name() -> str:
    return f"test_{secrets.token_hex(4)}"


def create(server: Server) -> Database:
    database = Database(server, new_name())
    with maintenance(server) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database.name)))
    return database


def maintenance(server: Server) -> psycopg.Connection[Row]:
    return psycopg.connect(server.dsn, autocommit=True)


def drop(database: Database) -> None:
    with maintenance(database.server) as connection:
        close_to_all(connection, database)
        name = sql.Identifier(database.name)
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))
        connection.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(name))


def close_to_all(connection: psycopg.Connection[Row], database: Database) -> None:
    """Ends the database's connections, prepared transactions and slots; nobody can connect any more."""
    with database.connect(autocommit=True) as inside:
        end_prepared_transactions(inside)
    # A client that is still running would connect again at once.
    connection.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(sql.Identifier(database.name)))
    drop_slots(connection, database.name)


def end_prepared_transactions(inside: psycopg.Connection[Row]) -> None:
    query = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
    for (gid,) in inside.execute(query).fetchall():
        inside.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))


def drop_slots(connection: psycopg.Connection[Row], name: str) -> None:
    """End the database's connections, then remove its slots: one that is in use cannot be dropped."""
    end_sessions(connection, name)
    connection.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s", [name]
    )


def end_sessions(connection: psycopg.Connection[Row], name: str) -> None:
    """Ends the connections; returns when none is left, as CREATE, ALTER and DROP DATABASE wait 5 s at most."""
    query = "SELECT pid, state, query, pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
    deadline = time.monotonic() + PATIENCE
    while left := connection.execute(query, [name]).fetchall():
        assert time.monotonic() < deadline, f"still connected to {name}: {left}"
        time.sleep(0.01)
