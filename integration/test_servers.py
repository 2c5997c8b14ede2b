"""The servers of the tests do what the tests rely on, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from integration.database import temporary_database
from integration.servers import Can, LocalServer, LocalServers, Server, ServerError, running_server
from integration.servers.address import as_uri
from integration.servers.external import DSN, ExternalServer
from integration.servers.guard import residents, shared_memory
from integration.servers.local import free_port
from integration.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from integration.database import Database

ROOT = Path(__file__).resolve().parents[1]

OWNER = """
    import os, sys, time
    from integration.servers import LocalServers
    servers = LocalServers(os.environ)
    server = servers.start()
    print(server.folder.parent, server.pid, flush=True)
    time.sleep(1000)
"""
"""A process that owns a server and, left alone, forgets to stop it."""

SHARER = """
    import os, time
    from integration.servers import LocalServers, running_server
    with LocalServers(os.environ) as local, running_server(os.environ, local) as server:
        print(server.dsn, flush=True)
        time.sleep(1000)
"""
"""A process that has what this machine offers to all tests: a container, or a server of its own."""


@pytest.fixture(scope="module")
def own_server(local_servers: LocalServers) -> Iterator[LocalServer]:
    server = local_servers.start()
    yield server
    server.stop("immediate")


@contextmanager
def running(program: str, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        yield process
        process.kill()


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[str]]:
    with running(OWNER, os.environ) as process:
        yield process


def one(server: Server | Database, query: str) -> object:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        row = connection.execute(query.encode()).fetchone()
        return row[0] if row else None


def answers(dsn: str) -> bool:
    try:
        psycopg.connect(dsn).close()
    except psycopg.OperationalError:
        return False
    return True


def test_a_slot_hands_out_the_changes_of_a_published_table(database: Database) -> None:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY); CREATE PUBLICATION orders FOR TABLE orders")
    database.execute(f"SELECT pg_create_logical_replication_slot('{database.name}', 'pgoutput')")
    database.execute("INSERT INTO orders SELECT generate_series(1, 3)")
    messages = database.execute(
        "SELECT get_byte(data, 0) FROM pg_logical_slot_peek_binary_changes("
        f"'{database.name}', NULL, NULL, 'proto_version', '1', 'publication_names', 'orders')"
    )
    assert "".join(chr(kind) for (kind,) in messages) == "BRIIIC"


def test_text_is_ordered_as_people_do_by_default_and_by_name(database: Database) -> None:
    words = "(VALUES ('a'), ('B'), ('é'), ('Z')) AS t (word)"
    assert database.execute(f"SELECT string_agg(word, ' ' ORDER BY word) FROM {words}") == [("a B é Z",)]
    named = f"SELECT string_agg(word, ' ' ORDER BY word COLLATE \"{{}}\") FROM {words}"
    assert database.execute(named.format("en_US.utf8")) == [("a B é Z",)]
    assert database.execute(named.format("C")) == [("B Z a é",)]


def test_a_database_goes_with_its_clients_slots_and_prepared_transactions(postgres: Server) -> None:
    with temporary_database(postgres) as database, database.connect() as client:
        database.execute("CREATE TABLE t (id int)")
        database.execute(f"SELECT pg_create_logical_replication_slot('{database.name}', 'pgoutput')")
        client.execute("INSERT INTO t VALUES (1)")
        client.execute("PREPARE TRANSACTION 'left behind'")
    assert one(postgres, f"SELECT count(*) FROM pg_database WHERE datname = '{database.name}'") == 0
    assert one(postgres, f"SELECT count(*) FROM pg_replication_slots WHERE database = '{database.name}'") == 0


def test_the_shared_server_is_configured_as_it_says(postgres: Server) -> None:
    assert {name: one(postgres, f"SHOW {name}") for name in postgres.settings} == postgres.settings


def test_a_failed_statement_is_logged_if_it_can_be_seen(database: Database, postgres: Server) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        database.execute("SELECT 1 / 0 AS told_in_the_log")
    eventually(lambda: "told_in_the_log" in postgres.log() or not postgres.log())


def test_a_restart_keeps_the_address_and_the_data(own_server: LocalServer) -> None:
    address = own_server.dsn
    with temporary_database(own_server) as database:
        database.execute("CREATE TABLE t AS SELECT 1 AS id")
        own_server.restart()
        assert own_server.dsn == address
        assert database.execute("SELECT id FROM t") == [(1,)]


def test_a_killed_server_recovers_what_was_committed(own_server: LocalServer) -> None:
    with temporary_database(own_server) as database:
        database.execute("CREATE TABLE t AS SELECT 1 AS id")
        database.execute(f"SELECT pg_create_logical_replication_slot('{database.name}', 'pgoutput')")
        own_server.kill()
        with pytest.raises(psycopg.OperationalError, match="refused"):
            database.execute("SELECT 1")
        own_server.start()
        assert "was not properly shut down" in own_server.log()
        assert database.execute("SELECT id FROM t") == [(1,)]
        assert one(own_server, "SELECT count(*) FROM pg_replication_slots") == 1


def test_a_stopped_server_refuses_connections_until_it_is_started(own_server: LocalServer) -> None:
    own_server.stop()
    own_server.stop()
    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(own_server.dsn)
    own_server.start()
    own_server.start()
    assert one(own_server, "SELECT 1") == 1


def test_a_server_is_reached_through_its_unix_socket_too(own_server: LocalServer) -> None:
    with psycopg.connect(own_server.socket_dsn) as connection:
        assert connection.execute("SELECT inet_server_addr()").fetchone() == (None,)


def test_the_programs_of_a_server_are_of_its_version(own_server: LocalServer) -> None:
    answer = subprocess.run(
        [own_server.bin("psql"), own_server.dsn, "-XAtc", "SHOW server_version_num"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(answer.stdout) == own_server.version
    with pytest.raises(ServerError, match="no program 'psq'"):
        own_server.bin("psq")


def test_a_server_takes_the_settings_of_a_test(start_postgres: Callable[..., LocalServer]) -> None:
    server = start_postgres(wal_level="replica", application_name="it's")
    assert one(server, "SHOW wal_level") == "replica"
    with pytest.raises(ServerError, match="wal_level is 'replica'"):
        ExternalServer(server.dsn)


def test_a_server_starts_where_new_files_are_for_their_owner_alone(start_postgres: Callable[..., LocalServer]) -> None:
    before = os.umask(0o077)
    try:
        server = start_postgres()
    finally:
        os.umask(before)
    assert answers(server.dsn)


def test_a_server_that_cannot_start_says_why(start_postgres: Callable[..., LocalServer]) -> None:
    with pytest.raises(ServerError, match='unrecognized configuration parameter "wall_level"'):
        start_postgres(wall_level="logical")
    assert one(start_postgres(), "SELECT 1") == 1  # and takes nothing from those after it


def test_a_named_server_is_used_and_never_stopped(own_server: LocalServer) -> None:
    with LocalServers({}) as local, running_server({"BACKFILL_TEST_DSN": own_server.dsn}, local) as server:
        assert (server.dsn, server.version, server.can) == (own_server.dsn, own_server.version, Can.NOTHING)
        with pytest.raises(ServerError, match="cannot be killed"):
            server.kill()


def test_a_named_server_that_does_not_answer_is_an_error() -> None:
    environment = {"BACKFILL_TEST_DSN": "postgresql://me:secret@127.0.0.1:1/x"}
    with (
        pytest.raises(ServerError, match="that BACKFILL_TEST_DSN names cannot be used") as caught,
        LocalServers({}) as local,
        running_server(environment, local),
    ):
        pass
    assert "secret" not in str(caught.value)


def test_a_named_image_is_an_error_where_no_engine_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    with (
        pytest.raises(ServerError, match="no Docker engine answers"),
        LocalServers({}) as local,
        running_server({"BACKFILL_TEST_IMAGE": "postgres:18"}, local),
    ):
        pass


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_the_shared_server_ends_with_the_process_that_started_it(end: signal.Signals) -> None:
    environment = {name: value for name, value in os.environ.items() if name != DSN}  # that one is not ours to end
    with running(SHARER, environment) as sharer:
        assert sharer.stdout
        dsn = sharer.stdout.readline().strip()
        assert answers(dsn)
        sharer.send_signal(end)
        sharer.wait()
        eventually(lambda: not answers(dsn))


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_nothing_outlives_the_process_that_owns_a_server(owner: subprocess.Popen[str], end: signal.Signals) -> None:
    assert owner.stdout
    folder = Path(owner.stdout.readline().split()[0])
    assert residents(folder)
    owner.send_signal(end)
    owner.wait()
    eventually(lambda: not folder.exists())
    assert not residents(folder)


def test_nothing_outlives_a_killed_server_whose_owner_is_killed(owner: subprocess.Popen[str]) -> None:
    assert owner.stdout
    folder, postmaster = owner.stdout.readline().split()
    (segment,) = shared_memory(Path(folder))
    os.kill(int(postmaster), signal.SIGKILL)
    owner.kill()
    owner.wait()
    eventually(lambda: not Path(folder).exists())
    held = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    assert segment not in [int(line.split()[1]) for line in held]


def test_no_server_gets_the_port_of_one_before() -> None:
    assert len({free_port() for _ in range(300)}) == 300


@pytest.mark.parametrize(
    ("conninfo", "uri"),
    [
        ("host=127.0.0.1 port=5433 user=me dbname=shop", "postgresql://me@127.0.0.1:5433/shop"),
        ("user='a b' password='p@ss/word' host=db", "postgresql://a%20b:p%40ss%2Fword@db/"),
        ("host=/run/pg dbname=shop port=5433", "postgresql:///shop?port=5433&host=%2Frun%2Fpg"),
        ("postgresql://[::1]:5433/shop?connect_timeout=3", "postgresql://[::1]:5433/shop?connect_timeout=3"),
    ],
)
def test_a_connection_string_and_its_uri_say_the_same(conninfo: str, uri: str) -> None:
    assert as_uri(conninfo) == uri
    assert conninfo_to_dict(uri) == conninfo_to_dict(conninfo)
