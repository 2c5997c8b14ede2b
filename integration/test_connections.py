"""Connections that are cut, and servers that go and come back."""

from __future__ import annotations

import os
import socket
import threading
import warnings
from collections.abc import Callable, Set
from contextlib import ExitStack, closing, suppress
from functools import partial
from operator import attrgetter

import psutil
import psycopg
import pytest

from backfill.errors import SchemaChangedError, SnapshotGoneError, TransientError
from backfill.handoff import SnapshotPart
from backfill.plan import MIN_SPLIT_ROWS
from backfill.upstream.postgres import PostgresUpstream
from backfill.upstream.postgres.session.connection import Connector
from backfill.upstream.postgres.snapshot.entering import Token
from backfill.vnode import WHOLE_TABLE
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.servers import LocalServer
from integration.stream_harness import StreamRun, churn, table_of
from integration.waiting import eventually


def terminate(database: Database, which: str) -> int:
    """Ends sessions of the stream, waits until they have gone, and returns how many there were."""
    return sessions(database, which, "pg_terminate_backend(pid, 10000)")


def sessions(database: Database, which: str, counted: str = "*") -> int:
    """How many sessions the stream has, as the server sees it."""
    query = (
        f"SELECT count({counted}) FROM pg_stat_activity "
        f"WHERE application_name = 'backfill' AND datname = current_database() AND {which}"
    )
    ((count,),) = database.execute(query)
    return int(count)


EXPORTER = "state = 'idle in transaction'"
OTHERS = f"NOT {EXPORTER}"
EVERY = "true"


@pytest.mark.parametrize("rows", [30, 400], ids=["in the middle of the backfill", "after it"])
def test_connections_cut_between_batches_are_made_anew(
    database: Database, start_stream: StartStream, rows: int
) -> None:
    table_of(database, 300)
    run = start_stream(vnodeCount="5")
    for number in range(8):
        run.judged_batch(rows)
        assert terminate(database, EVERY) > 0
        churn(database, number)
    run.finish()


class Terminating:
    """In place of a method of the upstream, or of a part of it: the same, after its session has been ended."""

    def __init__(self, run: StreamRun, name: str, which: str) -> None:
        self._database, self._which = run.database, which
        path, _, method = name.rpartition(".")
        owner = attrgetter(path)(run.upstream) if path else run.upstream
        self._method = getattr(owner, method)
        self.ended = 0
        setattr(owner, method, self)

    def __call__(self, *arguments: object, **named: object) -> object:
        if not self.ended:
            self.ended = terminate(self._database, self._which)
        return self._method(*arguments, **named)


@pytest.mark.parametrize(
    ("name", "which"),
    [
        ("measure", EXPORTER),
        ("_epochs.log.read", EVERY),
        ("acknowledge", EVERY),
        ("bounds", EVERY),
        ("covered", OTHERS),
    ],
    ids=["while vnodes are measured", "before the log is read", "before the slot moves", "at the start", "marking"],
)
def test_connections_cut_during_planning_are_made_anew(
    database: Database, start_stream: StartStream, name: str, which: str
) -> None:
    database.execute('CREATE TABLE t (id text COLLATE "en_US.utf8" PRIMARY KEY, v text)')
    database.execute("INSERT INTO t SELECT i, 'v' FROM generate_series(1, 300) i; ANALYZE t")
    run = start_stream(vnodeCount="5")
    if name != "bounds":
        run.judged_batch(30)
    terminating = Terminating(run, name, which)
    database.execute("UPDATE t SET v = 'new'")
    run.judged_batch(1000)
    run.backfill(1000)
    run.finish()
    assert terminating.ended > 0


def test_a_reader_cut_in_the_middle_of_its_chunk_goes_on_behind_the_last_row(
    database: Database, start_stream: StartStream
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text); ALTER TABLE t ALTER v SET STORAGE PLAIN")
    database.execute("INSERT INTO t SELECT i, repeat('x', 7000) FROM generate_series(1, 8000) i; ANALYZE t")
    run = start_stream(vnodeCount="2", numPartitions="1")
    run.plan(10_000)
    (part,) = run.parts()
    assert isinstance(part, SnapshotPart)
    ended, found = 0, []
    # Not through the part, which reads ahead: the server would be done before the first rows are here.
    for batch in run.upstream.reader().read(part.token, part.split.ranges):
        found += batch.column("id").to_pylist()
        if ended < 2:
            ended += terminate(database, "query LIKE 'COPY%' AND pid <> pg_backend_pid()")
    assert ended == 2
    assert found == list(range(1, 8001))


def test_a_reader_whose_state_is_gone_says_so_and_a_new_driver_reads_on(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 300)
    run = start_stream(vnodeCount="5")
    run.batch(30)
    run.plan(30)
    parts = run.parts()
    terminate(database, EXPORTER)
    with pytest.raises(SnapshotGoneError):
        run.read_part(parts[-1])
    churn(database, 1)
    run.restart()
    run.batch(30)
    run.finish()


@pytest.fixture
def own_database(start_postgres: Callable[..., LocalServer]) -> tuple[LocalServer, Database]:
    server = start_postgres()
    return server, Database(server, "postgres")


ENDS: dict[str, Callable[[LocalServer], None]] = {
    "shut down": lambda server: server.stop("fast"),
    "shut down without a checkpoint": lambda server: server.stop("immediate"),
    "killed": LocalServer.kill,
}


@pytest.mark.parametrize("end", ENDS)
def test_a_server_that_goes_and_comes_back_is_waited_for(
    own_database: tuple[LocalServer, Database], start_stream: StartStream, end: str
) -> None:
    server, database = own_database
    table_of(database, 300)
    run = start_stream(database=database, vnodeCount="5")
    for number, rows in enumerate((40, 40, 400, 400)):
        run.judged_batch(rows)
        churn(database, number)
        ENDS[end](server)
        coming = threading.Timer(0.3, server.start)
        coming.start()
        run.judged_batch(rows)
        coming.join()
    run.finish()


def test_a_server_that_goes_while_chunks_are_read_costs_no_row(
    own_database: tuple[LocalServer, Database], start_stream: StartStream
) -> None:
    server, database = own_database
    table_of(database, 3 * MIN_SPLIT_ROWS)
    run = start_stream(database=database, vnodeCount="6", numPartitions="3")
    run.plan(10_000_000)
    parts = run.parts()
    run.read_part(parts[0])
    server.kill()
    server.start()
    with pytest.raises(TransientError):
        run.read_part(parts[1])
    run.restart()
    churn(database, 1)
    run.batch()
    run.finish()


def exporting(database: Database, name: str, opened: ExitStack) -> None:
    """Exports a snapshot of now under this name, by taking transactions of sessions until it is one's turn."""
    _, transaction, _ = name.split("-")
    for _ in range(100):
        session = opened.enter_context(database.connect(autocommit=True))
        found = ""
        while found < transaction:
            session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            ((exported,),) = session.execute("SELECT pg_export_snapshot()").fetchall()
            if exported == name:
                return
            session.execute("ROLLBACK")
            found = exported.split("-")[1]
    raise AssertionError("no session came to have this name for its snapshot")


def test_a_snapshot_that_got_the_name_of_one_from_before_a_restart_is_not_read(
    own_database: tuple[LocalServer, Database], start_stream: StartStream
) -> None:
    server, database = own_database
    table_of(database, 3 * MIN_SPLIT_ROWS)
    server.restart()  # so that names are counted from the beginning, as they will be
    run = start_stream(database=database, vnodeCount="6", numPartitions="3")
    run.plan(10_000_000)
    parts = run.parts()
    run.read_part(parts[0])
    assert run.pin is not None
    name = Token.parse(run.pin.token).name
    server.kill()
    server.start()
    database.execute("UPDATE t SET v = 'later'")
    with ExitStack() as opened:
        exporting(database, name, opened)
        with pytest.raises(SnapshotGoneError, match="restarted"):
            run.read_part(parts[1])
    run.restart()
    run.batch()
    run.finish()


def test_a_server_that_stays_away_ends_the_stream_with_its_reason(
    own_database: tuple[LocalServer, Database], start_stream: StartStream
) -> None:
    server, database = own_database
    table_of(database, 10)
    run = start_stream(database=database)
    run.catch_up()
    server.stop()
    run.give_up_after(0.2)
    with pytest.raises(TransientError, match="connection"):
        run.batch()
    server.start()
    run.finish()


KEPT_ALIVE = (
    "SELECT current_setting('tcp_user_timeout'), current_setting('tcp_keepalives_idle'), "
    "current_setting('tcp_keepalives_interval'), current_setting('tcp_keepalives_count')"
)


def test_either_side_notices_that_the_other_has_vanished(database: Database) -> None:
    """As far as that can be seen without a network that swallows packets: what the kernels have been told."""
    connector = Connector.of(database.dsn, user="", password="", init_statement="")
    for_rows = connector.for_rows().new_arrow_session
    for opened, taken in ((connector.session, "60000"), (connector.new_arrow_session, "60000"), (for_rows, "0")):
        before = patience_of_sockets().keys() | patience_of_sockets().keys()
        with closing(opened()) as session:
            cursor = session.cursor() if isinstance(session, psycopg.Connection) else session
            cursor.execute(KEPT_ALIVE)
            assert cursor.fetchone() == (taken, "30", "10", "3")
            eventually(partial(one_more_waits_a_minute, before))


def test_rows_may_wait_longer_than_the_database_has_patience(database: Database) -> None:
    database.execute(f"ALTER DATABASE {database.name} SET tcp_user_timeout = 3000")
    connector = Connector.of(database.dsn, user="", password="", init_statement="").for_rows()
    with closing(connector.new_arrow_session()) as session:
        session.execute("SELECT current_setting('tcp_user_timeout')")
        assert session.fetchone() == ("0",)


def test_the_server_looks_for_its_client_in_the_midst_of_a_statement(
    own_database: tuple[LocalServer, Database],
) -> None:
    """Else the slot of a driver that was killed is busy until all that it has asked for is decoded."""
    _, database = own_database
    looks = "SELECT current_setting('client_connection_check_interval')"
    connector = Connector.of(database.dsn, user="", password="", init_statement="")
    with connector.session() as session, closing(connector.new_arrow_session()) as other:
        assert session.execute(looks).fetchone() == ("10s",)
        other.execute(looks)
        assert other.fetchone() == ("10s",)
    database.execute("ALTER ROLE postgres SET client_connection_check_interval = '100ms'")
    with connector.session() as session:
        assert session.execute(looks).fetchone() == ("100ms",)


def one_more_waits_a_minute(before: Set[int]) -> bool:
    """Whether there is one connection beside those of these ports, and it waits for a minute."""
    now = patience_of_sockets()
    return [now[port] for port in now.keys() - before] == [60_000]


def patience_of_sockets() -> dict[int, int]:
    """How many milliseconds each TCP connection of this process waits for what was sent to be received, by its port.

    One may be left out while others of the machine come and go: the system lists them piece by piece.
    """
    found = {}
    for connection in psutil.Process().net_connections("tcp"):
        if connection.raddr:
            # One that was kept from an earlier test may be closed meanwhile.
            with suppress(OSError), socket.socket(fileno=os.dup(connection.fd)) as same:
                # Not by its number: if one is closed meanwhile, the next one gets that.
                found[connection.laddr.port] = same.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    return found


def test_a_server_that_is_reached_without_a_network_takes_the_same_settings(
    own_database: tuple[LocalServer, Database],
) -> None:
    server, _ = own_database
    connector = Connector.of(server.socket_dsn, user="", password="", init_statement="")
    for opened in (connector.session, connector.new_arrow_session):
        opened().close()
    assert "keepalive" not in server.log()


def test_a_session_that_is_used_often_is_kept_once_and_then_closed(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backfill.upstream.postgres.session.connection.KEEP_SECONDS", 3.0)
    connector = Connector.of(database.dsn, user="", password="", init_statement="")
    mine = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'backfill' AND datname = current_database()"
    before = timers()
    with database.connect(autocommit=True) as looker:
        for _ in range(10):
            with connector.arrow_session() as session:
                session.execute("SELECT 1")
        assert looker.execute(mine).fetchone() == (1,)
    assert timers() - before <= 1
    eventually(lambda: database.execute(mine) == [(0,)])


def timers() -> int:
    return sum(isinstance(thread, threading.Timer) for thread in threading.enumerate())


def test_a_process_that_was_forked_has_sessions_of_its_own(database: Database) -> None:
    connector = Connector.of(database.dsn, user="", password="", init_statement="")
    with connector.arrow_session() as session:
        session.execute("SELECT pg_backend_pid()")
        (kept,) = session.fetchone() or ()
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # From 3.12 on, where other threads run.
        child = os.fork()
    if child == 0:
        with suppress(BaseException), connector.arrow_session() as session:
            session.execute("SELECT pg_backend_pid()")
            os.write(write, str(session.fetchone()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    assert os.read(read, 100).decode() not in ("", str((kept,)))
    os.close(read)
    with connector.arrow_session() as session:
        session.execute("SELECT pg_backend_pid()")
        assert session.fetchone() == (kept,)


def test_a_session_keeps_no_statement_however_often_it_is_run(database: Database) -> None:
    """Some name all the keys of a batch: the last hundred of them would be gigabytes of the driver's memory."""
    connector = Connector.of(database.dsn, user="", password="", init_statement="")
    with connector.session() as session:
        for _ in range(10):
            session.execute("SELECT %s::int8", [1])
        assert session.execute("SELECT count(*) FROM pg_prepared_statements").fetchall() == [(0,)]


def test_a_statement_for_each_session_may_have_rows_of_any_type(database: Database) -> None:
    connector = Connector.of(database.dsn, user="", password="", init_statement="SELECT row(1, 2), '{}'::json")
    with connector.arrow_session() as session:
        session.execute("SELECT 1")
        assert session.fetchone() == (1,)
    connector.session().close()


def test_a_process_does_not_read_all_catalogs_to_know_the_types_of_rows(database: Database) -> None:
    """They may be those of tens of thousands of tables, and every process of a reader would read them first."""
    database.execute("CREATE TYPE colour AS ENUM ('red'); CREATE DOMAIN number AS bigint")
    database.execute(
        f"CREATE ROLE {database.name} LOGIN PASSWORD 'narrow'; REVOKE SELECT ON pg_attribute, pg_type FROM PUBLIC"
    )
    connector = Connector.of(database.dsn, user=database.name, password="narrow", init_statement="")  # noqa: S106 - of a test
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


def test_a_state_is_let_go_where_a_batch_that_was_to_end_at_it_is_refused(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 10)
    run = start_stream(vnodeCount="5")
    assert run.batch(3)
    database.execute("ALTER TABLE t ALTER v TYPE varchar(50)")
    with pytest.raises(SchemaChangedError):
        run.plan(3)
    # A server that is busy learns a little later that its client has closed the session.
    eventually(lambda: sessions(database, EXPORTER) == 0, told=lambda: "the state is still held")
