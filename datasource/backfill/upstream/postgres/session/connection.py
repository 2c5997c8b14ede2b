"""How to reach one database, and the settings under which every session reads it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, TypeAlias

import adbc_driver_manager
import adbc_driver_postgresql
import psycopg
from psycopg import sql
from psycopg.adapt import Dumper
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from backfill.errors import OptionsError
from backfill.options import Options
from backfill.upstream.postgres.session.arrow_session import ArrowSession, require_driver
from backfill.upstream.postgres.session.connecting import behind_a_pooler
from backfill.upstream.postgres.session.environment import completed
from backfill.upstream.postgres.session.failures import about_init_statement, translated, translating

SETTINGS: Final = {
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
it make a slot and a publication. A space is escaped, as libpq wants it.
"""

ARRIVED: Final = "backfill.settings"
"""Set together with them, and asked for at once: a connection pooler may leave them all out without a word (PgBouncer
with ignore_startup_parameters), and then values would have other texts.
"""

MONETARY: Final = ("lc_monetary", "C")
"""What gives amounts of money one text, set after a session has begun: so it can still be asked for the one that the
database itself has (`money`).
"""

NETWORK: Final = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
"""When the server is given up, unless the url says otherwise; in seconds, the last one in milliseconds.

A server that has vanished with its machine says nothing, and by itself a kernel looks after two hours. While something
that was sent has not been received it does not look at all, and sends it again for a quarter of an hour.
"""

SERVER_KEEPALIVES: Final = {
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}
"""The same for the server, which keeps the session and its snapshot of a driver that has vanished."""

ANSWERS_TAKEN_AT_ONCE: Final = {"tcp_user_timeout": "60000"}
"""When the server gives up a client that does not acknowledge what it was sent, in milliseconds; not for a session
whose rows may wait (`for_rows`).
"""

NO_CONNECTION_STRING: Final = (
    "the option url cannot be understood; expected postgresql://role@host:5432/database, or host=… dbname=… user=…"
)

# The setting is new in version 17, and naming it at the start of a session would be refused by older ones.
_NO_TIMEOUT: Final = (
    "SELECT pg_catalog.set_config(name, '0', false) FROM pg_catalog.pg_settings WHERE name = 'transaction_timeout'"
)
# In the midst of a statement a server looks whether its client is there only where it is told to; it can be told to
# where the platform can say so. Else a slot stays busy until all that a killed driver has asked for is decoded.
_LOOKING: Final = (
    "CASE WHEN pg_catalog.version() LIKE '%-linux-%' "
    "AND pg_catalog.current_setting('client_connection_check_interval') = '0' "
    "THEN pg_catalog.set_config('client_connection_check_interval', '10s', false) END"
)
_READING: Final = (
    sql.SQL(", ")
    .join(
        sql.SQL("pg_catalog.set_config({}, {}, false)").format(sql.Literal(name), sql.Literal(value))
        for name, value in [*SETTINGS.items(), MONETARY, ("client_encoding", "UTF8")]
        if not name.endswith("_timeout") and not name.startswith("default_transaction")
    )
    .as_string(None)
)
_AGAIN: Final = f"SELECT {_READING}"
"""For after a statement of the user's own, which may limit time and rights, and not change what is read."""

# Once more what the connection string says, because libpq also sends PGTZ and PGDATESTYLE, which are taken before it.
_FIRST: Final = (
    f"SELECT pg_catalog.current_setting('{ARRIVED}', true) AS arrived, ({_NO_TIMEOUT}) AS timeout, "
    f"{_READING}, {_LOOKING}"
)
_LET_GO: Final = "pg_catalog.octet_length(pg_catalog.repeat(pg_catalog.repeat(' ', 1000), 1000))"
"""Has the server take a megabyte of memory, and give it back. glibc learns from it not to return that much to the
kernel. Else it does so after each row that took more than 128 kB of memory, as it learns only from larger pieces, and
gets it anew for the next one: tables of some hundred columns, or of values of some 10 kB, were sent two to six times
as slowly.
"""

_FIRST_OF_BULK: Final = f"{_FIRST}, pg_catalog.repeat(' ', 120000), {_LET_GO}"
"""The same where many rows are to be read. libpq takes from the socket what its buffer has room for, which is 16 kB
until something larger arrives, and it keeps the larger one: a tenth of what a reader works went into system calls.
"""

Session: TypeAlias = psycopg.Connection[tuple[Any, ...]]


class _Number(Dumper):
    """Sends an int without a type, as psycopg sends a str, so that the server takes the one that it is compared with.

    For `oid = int2` it would choose an operator that fits more or less, and rather one for just these types that
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
    def of(cls, url: str, *, user: str, password: str, init_statement: str, primary: bool = True) -> Connector:
        """`primary`: of several hosts that the url names it is to be the primary, unless the url says otherwise."""
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
        if primary and "," in given.get("host", "") + given.get("hostaddr", ""):
            given.setdefault("target_session_attrs", "primary")
        given["client_encoding"] = "UTF8"
        # The server would not be told of PGOPTIONS where there are options; and executors are to have the driver's.
        own = given.get("options", os.environ.get("PGOPTIONS", ""))
        given["options"] = " ".join(
            [
                _in_options(ANSWERS_TAKEN_AT_ONCE),
                _in_options(SERVER_KEEPALIVES),
                own,
                _in_options({**SETTINGS, ARRIVED: "1"}),
            ]
        )
        return cls(make_conninfo("", **given), init_statement)

    def for_rows(self) -> Connector:
        """For sessions whose rows go where they may rightly be taken by nobody for minutes, whatever the server's own
        patience is.
        """
        given = conninfo_to_dict(self.conninfo)
        others = str(given["options"]).removeprefix(_in_options(ANSWERS_TAKEN_AT_ONCE))
        given["options"] = _in_options(dict.fromkeys(ANSWERS_TAKEN_AT_ONCE, "0")) + others
        return replace(self, conninfo=make_conninfo("", **given))

    def session(self) -> Session:
        """A session for control statements, in autocommit."""
        with translating():
            # Nothing is prepared: psycopg would keep the text of the last hundred statements, and some of them name all
            # the keys of a batch.
            connection = psycopg.connect(self.conninfo, autocommit=True, prepare_threshold=None)
            with ExitStack() as opened:
                opened.callback(connection.close)
                connection.adapters.register_dumper(int, _Number)
                cursor = connection.cursor()
                self._begin(cursor, _FIRST, cursor.execute)
                opened.pop_all()
            return connection

    @contextmanager
    def arrow_session(self) -> Iterator[ArrowSession]:
        """A session for bulk reads as Arrow, in autocommit; one that was used a moment ago, if there is one.

        Opening one takes longer than many a batch. After an error a session is not used again.
        """
        session = _idle.take(self) or self.new_arrow_session()
        try:
            yield session
        except BaseException:
            session.close()
            raise
        _idle.put(self, session)

    def new_arrow_session(self) -> ArrowSession:
        """A session of the caller's own, to be closed by it."""
        with translating():
            session = ArrowSession(self.conninfo)
            with ExitStack() as opened:
                opened.callback(session.close)
                self._begin(session, _FIRST_OF_BULK, session.carry_out)
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
            cursor.execute(_AGAIN)


def _in_options(settings: Mapping[str, str]) -> str:
    return " ".join(f"-c {name}={value}" for name, value in settings.items())


KEEP_SECONDS: Final = 30.0
"""How long an Arrow session is kept for the next batch, before it is closed: longer than an idle stream waits between
two looks at its log (`epochs.LOOK_INTERVAL`), and most often than a reader does for the next batch to be planned."""


class _IdleSessions:
    """Arrow sessions of this process that nobody uses at the moment, each with the time at which it is closed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[float, Connector, ArrowSession]] = []
        self._timed = False
        """Whether a timer is set: one is enough, however often sessions come and go."""
        self._left: list[tuple[float, Connector, ArrowSession]] = []
        """Those of the process that this one was forked from, so that nothing closes them."""

    def take(self, connector: Connector) -> ArrowSession | None:
        with self._lock:
            for at, (_, owner, session) in enumerate(self._waiting):
                if owner == connector:
                    del self._waiting[at]
                    return session
        return None

    def put(self, connector: Connector, session: ArrowSession) -> None:
        with self._lock:
            self._waiting.append((time.monotonic() + KEEP_SECONDS, connector, session))
            self._set_timer()

    def _set_timer(self) -> None:
        if self._waiting and not self._timed:
            self._timed = True
            timer = threading.Timer(self._waiting[0][0] - time.monotonic(), self._close_old)
            timer.daemon = True
            timer.start()

    def leave_to_parent(self) -> None:
        """In a process that was forked: closing a session would end that of the other one."""
        self._left, self._waiting, self._timed = self._waiting, [], False
        self._lock = threading.Lock()

    def _close_old(self) -> None:
        now = time.monotonic()
        with self._lock:
            old = [item for item in self._waiting if item[0] <= now]
            self._waiting = [item for item in self._waiting if item[0] > now]
            self._timed = False
            self._set_timer()
        for _, _, session in old:
            session.close()


_idle: Final = _IdleSessions()
os.register_at_fork(after_in_child=_idle.leave_to_parent)


def one_row(cursor: psycopg.Cursor[tuple[Any, ...]]) -> tuple[Any, ...]:
    """What a statement gives that always gives one."""
    row = cursor.fetchone()
    if row is None:
        raise psycopg.OperationalError("the server gave no row where one was due")
    return row
