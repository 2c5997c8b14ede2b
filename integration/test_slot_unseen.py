"""What the slot of a new stream does not tell, and nobody sees yet, comes with the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest

from backfill.upstream.postgres.replication import unseen
from integration.database import Database, Row
from integration.fixtures.streams import StartStream
from integration.servers import LocalServer
from integration.stream_harness import StreamRun, table_of
from integration.waiting import eventually

WRITES = "INSERT INTO other VALUES (1)"

WAITED_FOR = (
    "SELECT 1 FROM pg_locks w JOIN pg_locks h USING (transactionid) WHERE NOT w.granted AND h.granted AND h.pid = %s"
)
"""Whether anybody waits for the transaction of this process; here that is who makes the slot."""

HANGS = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event = 'SyncRep'"
COMPLETE = "SELECT 1 FROM pg_replication_slots WHERE database = current_database() AND confirmed_flush_lsn IS NOT NULL"


def is_so(database: Database, query: str, session: psycopg.Connection[Row]) -> None:
    eventually(lambda: bool(database.execute(query, [session.info.backend_pid])))


@contextmanager
def begun_at_last(run: StreamRun, pool: ThreadPoolExecutor) -> Iterator[Future[bool]]:
    """A stream that makes its slot: it is complete when the body ends, and its making does not wait for what the body
    begins.

    The server makes a slot in three steps; before each of the last two it waits for what was open at the step before.
    """
    database = run.database
    with database.connect() as first, database.connect() as second:
        first.execute(WRITES)
        beginning = pool.submit(run.plan)
        is_so(database, WAITED_FOR, first)
        second.execute(WRITES)
        first.commit()
        is_so(database, WAITED_FOR, second)
        yield beginning
        second.commit()
        eventually(lambda: bool(database.execute(COMPLETE)))


def test_a_commit_from_before_the_slot_that_nobody_sees_yet_is_waited_for(
    start_postgres: Callable[..., LocalServer], start_stream: StartStream
) -> None:
    database = Database(start_postgres(synchronous_standby_names="nobody", synchronous_commit="local"), "postgres")
    table_of(database, 10)
    database.execute("CREATE TABLE other (id int)")
    run = start_stream(database=database)
    with database.connect() as writer, ThreadPoolExecutor(2) as pool:
        with begun_at_last(run, pool) as beginning:
            writer.execute("SET synchronous_commit = on; INSERT INTO t VALUES (11, 'not seen yet')")
            hanging = pool.submit(writer.commit)
            is_so(database, HANGS, writer)
        database.execute("SELECT pg_sleep(%s)", [2 * unseen.PATIENCE])
        waits = not beginning.done()
        database.execute("SELECT pg_cancel_backend(%s)", [writer.info.backend_pid])
        hanging.result(60)
        assert waits
        assert beginning.result(60)
    run.commit(run.read())
    assert (11,) in run.fold.rows
    run.finish()


def test_where_no_commit_waits_for_a_standby_who_is_at_work_holds_up_a_stream_for_a_moment_only(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 10)
    database.execute("CREATE TABLE other (id int)")
    run = start_stream()
    with database.connect() as writer, ThreadPoolExecutor(1) as pool:
        with begun_at_last(run, pool) as beginning:
            writer.execute("UPDATE t SET v = 'at work'")
        assert beginning.result(60)
        run.commit(run.read())
        writer.commit()
    run.finish()


@pytest.mark.parametrize("publication", ["", "feed"], ids=["of the stream", "given"])
def test_changes_from_before_the_publication_are_not_missed_where_the_slot_is_older(
    database: Database, start_stream: StartStream, publication: str
) -> None:
    table_of(database, 10)
    database.execute("CREATE TABLE other (id int)")
    slot = f"{database.name}_older"
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
    database.execute("UPDATE t SET v = 'before' WHERE id = 1")
    run = start_stream(slotName=slot, publicationName=publication)
    with database.connect() as writer, ThreadPoolExecutor(1) as pool:
        writer.execute("UPDATE t SET v = 'from before to after' WHERE id = 2")
        if publication:
            database.execute("CREATE PUBLICATION feed FOR TABLE t")
        beginning = pool.submit(run.batch)
        database.execute("SELECT pg_sleep(%s)", [2 * unseen.PATIENCE])
        assert not beginning.done()
        writer.commit()
        assert beginning.result(60)
    database.execute("UPDATE t SET v = 'after' WHERE id = 3")
    run.finish()
