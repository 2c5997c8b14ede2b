"""Servers that go while a stream follows them, and come back, or do not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from backfill.errors import SnapshotGoneError, TransientError
from backfill.plan import MIN_SPLIT_ROWS
from backfill.upstream.postgres.snapshot.entering import Token
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.servers import LocalServer
from integration.stream_harness import churn, table_of

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
    """Exports a snapshot of now under this name, by beginning transactions until one gets the name."""
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
