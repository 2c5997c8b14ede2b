"""What every session is told when it begins, which are kept, and for how long."""

from __future__ import annotations

import os
import socket
import threading
import warnings
from collections.abc import Set
from contextlib import closing, suppress
from functools import partial

import psutil
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from backfill.errors import ConnectionLostError, DatabaseSetupError
from backfill.upstream.postgres import PostgresUpstream
from backfill.upstream.postgres.session.connection import Connector
from backfill.upstream.postgres.session.failures import translating
from backfill.upstream.postgres.session.idle_sessions import IdleSessions
from backfill.vnode import WHOLE_TABLE
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.servers import LocalServer
from integration.sessions import EVERY, sessions
from integration.stream_harness import table_of
from integration.waiting import eventually

KEPT_ALIVE = (
    "SELECT current_setting('tcp_user_timeout'), current_setting('tcp_keepalives_idle'), "
    "current_setting('tcp_keepalives_interval'), current_setting('tcp_keepalives_count')"
)


def test_either_side_notices_that_the_other_has_vanished(database: Database) -> None:
    """Shows what the kernels have been told, as no network here swallows packets."""
    connector = Connector.of(database.dsn)
    server = int(conninfo_to_dict(database.dsn)["port"] or 0)
    for_rows = connector.for_rows().new_arrow_session
    for opened, taken in ((connector.session, "60000"), (connector.new_arrow_session, "60000"), (for_rows, "0")):
        before = patience_of_sockets(server).keys() | patience_of_sockets(server).keys()
        with closing(opened()) as session:
            cursor = session.cursor() if isinstance(session, psycopg.Connection) else session
            cursor.execute(KEPT_ALIVE)
            assert cursor.fetchone() == (taken, "30", "10", "3")
            eventually(partial(one_more_waits_a_minute, server, before))


def test_rows_may_wait_longer_than_the_database_has_patience(database: Database) -> None:
    database.execute(f"ALTER DATABASE {database.name} SET tcp_user_timeout = 3000")
    connector = Connector.of(database.dsn).for_rows()
    with closing(connector.new_arrow_session()) as session:
        session.execute("SELECT current_setting('tcp_user_timeout')")
        assert session.fetchone() == ("0",)


def test_the_server_looks_for_its_client_in_the_midst_of_a_statement(database: Database) -> None:
    """Otherwise the slot of a killed driver is busy until all that the driver asked for is decoded."""
    looks = "SELECT current_setting('client_connection_check_interval')"
    connector = Connector.of(database.dsn)
    with connector.session() as session, closing(connector.new_arrow_session()) as other:
        assert session.execute(looks).fetchone() == ("10s",)
        other.execute(looks)
        assert other.fetchone() == ("10s",)
    database.execute(f"ALTER DATABASE {database.name} SET client_connection_check_interval = '100ms'")
    with connector.session() as session:
        assert session.execute(looks).fetchone() == ("100ms",)


def one_more_waits_a_minute(server: int, before: Set[int]) -> bool:
    """Whether there is just one connection beside those of these ports, and it waits for a minute."""
    now = patience_of_sockets(server)
    return [now[port] for port in now.keys() - before] == [60_000]


def patience_of_sockets(server: int) -> dict[int, int]:
    """How many milliseconds each TCP connection of this process to the server's port waits for the receipt of what it
    sent, by the connection's own port.

    A connection may be missing while others of the machine come and go: the system lists them piece by piece.
    """
    found = {}
    for connection in psutil.Process().net_connections("tcp"):
        # Connections to a JVM of this process do not count: it opens more of them whenever it likes.
        if connection.raddr and connection.raddr.port == server:
            # A connection that was kept from an earlier test may be closed meanwhile.
            with suppress(OSError), socket.socket(fileno=os.dup(connection.fd)) as same:
                # Not by the number of the descriptor: if it is closed meanwhile, the next one gets that number.
                found[connection.laddr.port] = same.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    return found


def test_a_server_that_is_reached_without_a_network_takes_the_same_settings(
    own_database: tuple[LocalServer, Database],
) -> None:
    server, _ = own_database
    connector = Connector.of(server.socket_dsn)
    for opened in (connector.session, connector.new_arrow_session):
        opened().close()
    assert "keepalive" not in server.log()


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> IdleSessions:
    """The place where idle sessions of this test alone wait: those of earlier tests are kept longer, with one timer."""
    idle = IdleSessions()
    monkeypatch.setattr("backfill.upstream.postgres.session.connection.IDLE", idle)
    return idle


def used(connector: Connector) -> object:
    """Uses a session; returns which of the server's processes was that of the session."""
    with connector.arrow_session() as session:
        session.execute("SELECT pg_backend_pid()")
        return session.fetchone()


def timers(idle: IdleSessions) -> list[threading.Timer]:
    every = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    return [timer for timer in every if timer.function == idle._close_old]


def test_a_session_that_is_used_often_is_kept_once_and_then_closed(
    database: Database, idle: IdleSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept_for = "backfill.upstream.postgres.session.idle_sessions.KEEP_SECONDS"
    monkeypatch.setattr(kept_for, 3600.0)
    connector = Connector.of(database.dsn)
    for _ in range(10):
        used(connector)
    assert sessions(database, EVERY) == 1
    (timer,) = timers(idle)
    assert 3500 < timer.interval <= 3600
    timer.cancel()
    monkeypatch.setattr(kept_for, 0.0)
    used(connector)
    assert sessions(database, EVERY) == 1
    timer.function()
    eventually(lambda: sessions(database, EVERY) == 0)


@pytest.mark.usefixtures("idle")
def test_sessions_that_were_needed_at_once_are_closed_where_one_is_enough(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backfill.upstream.postgres.session.idle_sessions.KEEP_SECONDS", 1.0)
    connector = Connector.of(database.dsn)
    with connector.arrow_session() as first, connector.arrow_session() as second:
        for session in (first, second):
            session.execute("SELECT 1")

    def one_is_left() -> bool:
        used(connector)
        return sessions(database, EVERY) == 1

    eventually(one_is_left)


@pytest.mark.usefixtures("idle")
def test_a_session_that_is_never_idle_for_long_does_not_become_old(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backfill.upstream.postgres.session.idle_sessions.OLD_AFTER", 1.0)
    connector, processes = Connector.of(database.dsn), set()

    def another_is_used() -> bool:
        processes.add(used(connector))
        return len(processes) == 2

    eventually(another_is_used)
    eventually(lambda: sessions(database, EVERY) == 1)  # A session that was closed ends a moment later.


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize("what", ["cut", "of a role that was made again"])
def test_of_several_sessions_that_are_all_lost_only_one_is_found_to_be(database: Database, what: str) -> None:
    role = database.name  # which goes with it
    made = f"CREATE ROLE {role} LOGIN PASSWORD '{role}'; GRANT SELECT ON t TO {role}"
    table_of(database, 1)
    database.execute(made)
    connector = Connector.of(make_conninfo(database.dsn, user=role, password=role))

    def read() -> None:
        with translating(), connector.arrow_session() as session:
            session.execute("SELECT v FROM t")

    with connector.arrow_session(), connector.arrow_session(), connector.arrow_session():
        read()
    if what == "cut":
        database.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [role])
    else:
        database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}; {made}")
    with pytest.raises(ConnectionLostError if what == "cut" else DatabaseSetupError):
        read()
    read()


def test_a_process_that_was_forked_has_sessions_of_its_own(database: Database) -> None:
    connector = Connector.of(database.dsn)
    kept = used(connector)
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # From 3.12 on, where other threads run.
        child = os.fork()
    if child == 0:
        with suppress(BaseException):
            os.write(write, str(used(connector)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    assert os.read(read, 100).decode() not in ("", str(kept))
    os.close(read)
    assert used(connector) == kept


def test_a_session_keeps_no_statement_however_often_it_is_run(database: Database) -> None:
    """Some name all keys of a batch: a hundred such statements would be gigabytes of the driver's memory."""
    connector = Connector.of(database.dsn)
    with connector.session() as session:
        for _ in range(10):
            session.execute("SELECT %s::int8", [1])
        assert session.execute("SELECT count(*) FROM pg_prepared_statements").fetchall() == [(0,)]


def test_a_statement_for_each_session_may_have_rows_of_any_type(database: Database) -> None:
    connector = Connector.of(database.dsn, init_statement="SELECT row(1, 2), '{}'::json")
    with connector.arrow_session() as session:
        session.execute("SELECT 1")
        assert session.fetchone() == (1,)
    connector.session().close()


def test_a_process_does_not_read_all_catalogs_to_know_the_types_of_rows(database: Database) -> None:
    """The catalogs may tell of tens of thousands of tables, and every reader process would read them first."""
    database.execute("CREATE TYPE colour AS ENUM ('red'); CREATE DOMAIN number AS bigint")
    database.execute(
        f"CREATE ROLE {database.name} LOGIN PASSWORD 'narrow'; REVOKE SELECT ON pg_attribute, pg_type FROM PUBLIC"
    )
    connector = Connector.of(database.dsn, user=database.name, password="narrow")  # noqa: S106 - of a test
    with closing(connector.new_arrow_session()) as session:
        session.execute("SELECT 'red'::colour::text, '{1,2}'::number[]::text, 3::number, '{4}'::int8[]")
        assert session.fetchone() == ("red", "{1,2}", 3, [4])


def test_a_look_at_rows_leaves_its_patience_with_nobody_who_gets_the_session_next(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 10)
    upstream = start_stream().stream()._upstream
    assert isinstance(upstream, PostgresUpstream)
    upstream.attach(upstream.bookmark("patience"), None)
    pin = upstream.snapshot_epoch(None, max_changes=1000).pin
    assert pin is not None
    assert sum(batch.num_rows for batch in upstream.lookup(pin, upstream.typed([("1",), ("2",)]))) == 2
    assert sum(batch.num_rows for batch in upstream.reader().scan([WHOLE_TABLE])) == 10
    for connector in (upstream._connector, upstream._connector.for_rows()):
        with connector.arrow_session() as session:
            session.execute("SHOW lock_timeout")
            assert session.fetchone() == ("0",)
