"""How to reach one database: opening sessions on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, TypeAlias

import adbc_driver_manager
import adbc_driver_postgresql
import psycopg
from psycopg.adapt import Dumper
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from backfill.errors import OptionsError
from backfill.options import Options
from backfill.upstream.postgres.session.arrow_session import ArrowSession, require_driver
from backfill.upstream.postgres.session.connecting import behind_a_pooler
from backfill.upstream.postgres.session.environment import completed, spelled_out
from backfill.upstream.postgres.session.failures import about_init_statement, translated, translating
from backfill.upstream.postgres.session.idle_sessions import IDLE
from backfill.upstream.postgres.session.settings import (
    AGAIN,
    FIRST,
    FIRST_OF_BULK,
    NETWORK,
    session_options,
    where_rows_wait,
)

NO_CONNECTION_STRING: Final = (
    "the option url cannot be understood; expected postgresql://role@host:5432/database, or host=… dbname=… user=…"
)

Session: TypeAlias = psycopg.Connection[tuple[Any, ...]]

Asked: TypeAlias = psycopg.Cursor[tuple[Any, ...]]
"""A query that was sent; in a pipeline its answer may be still to come."""


class _Number(Dumper):
    """Sends an int without a type, as psycopg sends a str, so that the server takes the one that it is compared with.

    For `oid = int2` it would choose an operator that fits more or less, and prefer one for exactly these types that
    somebody has made in a schema of the search_path.
    """

    def dump(self, obj: int) -> bytes:
        return str(obj).encode()


class Cursor(Protocol):
    """What cursors of both drivers have in common."""

    def execute(self, statement: str, /) -> Any: ...
    def fetchone(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Connector:
    """Opens sessions of one role on one database. Picklable, because executors open their own."""

    conninfo: str = field(repr=False)
    init_statement: str = field(default="", repr=False)

    @classmethod
    def of_options(cls, options: Options) -> Connector:
        require_driver(adbc_driver_postgresql.__version__)
        return cls.of(
            options.url,
            user=options.user,
            password=options.password,
            init_statement=options.session_init_statement,
            primary=options.has_metadata,  # A stream, or changes; a standby has the table as well.
        )

    @classmethod
    def of(
        cls, url: str, *, user: str = "", password: str = "", init_statement: str = "", primary: bool = True
    ) -> Connector:
        """`primary`: where the url names several hosts, only the primary will do, unless the url says otherwise."""
        try:
            given = {key: str(value) for key, value in conninfo_to_dict(url).items()}
        except psycopg.ProgrammingError:  # whose text may quote a password
            raise OptionsError(NO_CONNECTION_STRING) from None
        if user:
            given["user"] = user
        if password:
            given["password"] = password
        given = completed(given)
        for name, value in NETWORK.items():
            given.setdefault(name, value)
        given.setdefault("fallback_application_name", "backfill")
        known = spelled_out(given)
        if primary and "," in known.get("host", "") + known.get("hostaddr", ""):
            given["target_session_attrs"] = known.get("target_session_attrs", "primary")
        given.pop("replication", None)  # A replication session takes no statements with parameters.
        given["client_encoding"] = "UTF8"
        # Given options, libpq does not send PGOPTIONS any more; and executors are to use those of the driver.
        given["options"] = session_options(given.get("options", os.environ.get("PGOPTIONS", "")))
        return cls(make_conninfo("", **given), init_statement)

    def for_rows(self) -> Connector:
        """The same, for sessions whose rows may wait to be taken: see `where_rows_wait`."""
        waiting = where_rows_wait(str(conninfo_to_dict(self.conninfo)["options"]))
        return replace(self, conninfo=make_conninfo(self.conninfo, options=waiting))

    def here(self, **parameters: str) -> str:
        """The connection string for a library in this process, with further parameters; services are spelled out."""
        given = {key: str(value) for key, value in conninfo_to_dict(self.conninfo).items()}
        return make_conninfo("", **spelled_out({**given, **parameters}))

    def session(self) -> Session:
        """A session for control statements, in autocommit."""
        with translating():
            # Nothing is prepared: psycopg would keep the text of the last hundred statements, and some of them name all
            # the keys of a batch.
            connection = psycopg.connect(self.here(), autocommit=True, prepare_threshold=None)
            with ExitStack() as opened:
                opened.callback(connection.close)
                connection.adapters.register_dumper(int, _Number)
                cursor = connection.cursor()
                self._begin(cursor, FIRST, cursor.execute)
                opened.pop_all()
            return connection

    @contextmanager
    def arrow_session(self) -> Iterator[ArrowSession]:
        """A session for bulk reads as Arrow, in autocommit; one that was used a moment ago, if there is one.

        Opening a session may take longer than a batch. After an error neither the session nor those that are kept
        beside it are used again: what was wrong with one, as after a restart of the server, may be wrong with all.
        """
        session = IDLE.take(self) or self.new_arrow_session()
        try:
            yield session
        except BaseException as error:
            session.close()
            if isinstance(error, Exception):  # Not where rows are no longer wanted.
                IDLE.close_all(self)
            raise
        IDLE.put(self, session)

    def new_arrow_session(self) -> ArrowSession:
        """A session of the caller's own, to be closed by it."""
        with translating():
            session = ArrowSession(self.here())
            with ExitStack() as opened:
                opened.callback(session.close)
                self._begin(session, FIRST_OF_BULK, session.carry_out)
                opened.pop_all()
            return session

    def _begin(self, cursor: Cursor, first: str, carry_out: Callable[[str], object]) -> None:
        """What every session does first."""
        cursor.execute(first)
        arrived, *_ = cursor.fetchone()
        if arrived is None:
            raise behind_a_pooler("they did not reach the server")
        if self.init_statement:
            try:
                carry_out(self.init_statement)
            except (psycopg.Error, adbc_driver_manager.Error) as error:
                found = translated(error, about_init_statement)
                raise type(found)(f"the option sessionInitStatement: {found.message}") from None
            cursor.execute(AGAIN)


def one_row(cursor: Cursor) -> tuple[Any, ...]:
    """The row of a statement that always returns exactly one."""
    row: tuple[Any, ...] | None = cursor.fetchone()
    if row is None:
        raise psycopg.OperationalError("the server returned no row, expected one")
    return row


def together(*statements: str) -> str:
    """The statements as one text, which takes one round trip; for sessions that execute text without parameters.

    Those behind one that fails are not executed.
    """
    return "; ".join(statements)
