"""Databases for one test after the other: one that is empty again is as good as a new one, and made far sooner.

A new one is 900 files, and making it took more processor time than most tests that use one.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import sql

from integration.database import close_to_all, create, drop, maintenance, new_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from integration.database import Database, Row
    from integration.servers.server import Server

COUNTED: Final = (
    *("pg_class", "pg_type", "pg_proc", "pg_publication", "pg_event_trigger", "pg_extension", "pg_cast", "pg_operator"),
    *("pg_collation", "pg_conversion", "pg_default_acl", "pg_language", "pg_foreign_server", "pg_statistic_ext"),
    *("pg_largeobject_metadata", "pg_opclass", "pg_rewrite", "pg_ts_config"),
)
GRANTED: Final = {"pg_class": "relacl", "pg_proc": "proacl", "pg_type": "typacl", "pg_language": "lanacl"}
OF_THE_DATABASE: Final = """
    SELECT datdba, datacl, datconnlimit, datistemplate, dattablespace,
        (SELECT count(*) FROM pg_db_role_setting WHERE setdatabase = d.oid),
        (SELECT array_agg((nspname, nspowner, nspacl)::text ORDER BY nspname) FROM pg_namespace
            WHERE nspname !~ '^pg_(toast_)?temp_')
    FROM pg_database AS d WHERE datname = current_database()
"""


class Databases:
    """One database of a server at a time, each under a name never used before."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._spare: Database | None = None
        self._state_when_new: list[Row] | None = None

    @contextmanager
    def database(self) -> Iterator[Database]:
        """An empty database; at the end its connections, slots, prepared transactions and role are removed."""
        database, self._spare = self._spare or create(self.server), None
        if self._state_when_new is None:
            with database.connect(autocommit=True) as inside:
                self._state_when_new = _state(inside)
        try:
            yield database
        finally:
            self._take_back(database)

    def close(self) -> None:
        if self._spare is not None:
            drop(self._spare)

    def _take_back(self, database: Database) -> None:
        renamed = replace(database, name=new_name())
        with maintenance(self.server) as connection:
            # Whoever still knows the old name, such as a driver that a test has left behind, does not meet the next
            # test.
            close_to_all(connection, database)
            names = sql.Identifier(database.name), sql.Identifier(renamed.name)
            connection.execute(sql.SQL("ALTER DATABASE {} RENAME TO {}").format(*names))
            connection.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(names[1]))
            if self._emptied(renamed):
                self._spare = renamed
            else:
                drop(renamed)
            connection.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(names[0]))

    def _emptied(self, database: Database) -> bool:
        """Empties the database; returns whether it is then as it was when it was new."""
        try:
            with database.connect(autocommit=True) as inside:
                _empty(inside, self.server.version)
                return _state(inside) == self._state_when_new
        except psycopg.Error:  # a test may have forbidden writing to it, for one
            return False


def _empty(inside: psycopg.Connection[Row], version: int) -> None:
    for (name,) in inside.execute("SELECT pubname FROM pg_publication").fetchall():
        inside.execute(sql.SQL("DROP PUBLICATION {}").format(sql.Identifier(name)))
    query = "SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'"
    for (name,) in inside.execute(query).fetchall():
        inside.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(name)))
    if version >= 150_000:
        inside.execute("CREATE SCHEMA public AUTHORIZATION pg_database_owner; GRANT USAGE ON SCHEMA public TO public")
    else:
        inside.execute("CREATE SCHEMA public; GRANT ALL ON SCHEMA public TO public")


def _state(inside: psycopg.Connection[Row]) -> list[Row]:
    """What tells a database from a new one, whatever a test may have done in it."""
    counts = [sql.SQL("SELECT count(*)::text FROM {}").format(sql.Identifier(name)) for name in COUNTED]
    rights = [
        sql.SQL("SELECT md5(string_agg(concat(oid, {1}), ' ' ORDER BY oid)) FROM {0} WHERE {1} IS NOT NULL").format(
            sql.Identifier(name), sql.Identifier(column)
        )
        for name, column in GRANTED.items()
    ]
    found = inside.execute(sql.SQL(" UNION ALL ").join([*counts, *rights])).fetchall()
    return [*found, *inside.execute(OF_THE_DATABASE).fetchall()]
