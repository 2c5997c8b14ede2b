"""Locks of others: a stream is not held up by those that do not concern it, and says what it waits for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest

from backfill.__main__ import main
from backfill.errors import TableLockedError
from backfill.options import parse
from backfill.upstream.postgres import PostgresUpstream
from backfill.upstream.postgres.replication import blockers, published
from backfill.upstream.postgres.session import locks
from backfill.upstream.postgres.session.connection import Connector
from backfill.upstream.postgres.session.retries import RetryPolicy
from backfill.vnode import WHOLE_TABLE
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.servers import LocalServer
from integration.standby import no_standby
from integration.stream_harness import table_of
from integration.versions import require_version
from integration.waiting import eventually, logged

WAITS_FOR_NOBODY = "SET lock_timeout = '300ms'"

PARTITIONED = """
    CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
    CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (100);
    CREATE TABLE high PARTITION OF t FOR VALUES FROM (100) TO (200);
    INSERT INTO t SELECT i, 'v' FROM generate_series(1, 99) i; ANALYZE t
"""


@contextmanager
def in_transaction(database: Database, statement: str) -> Iterator[None]:
    """Executes the statement in a transaction that stays open until the block ends."""
    with database.connect() as connection:
        connection.execute(statement.encode())
        yield
        connection.rollback()


def test_changes_are_followed_while_a_partition_is_locked(database: Database, start_stream: StartStream) -> None:
    database.execute(PARTITIONED)
    run = start_stream(sessionInitStatement=WAITS_FOR_NOBODY)
    run.backfill()
    run.give_up_after(0.02)
    with in_transaction(database, "LOCK TABLE low"):
        database.execute("INSERT INTO t VALUES (150, 'new')")
        run.catch_up()
    run.finish()


def test_changes_are_followed_while_a_partition_that_was_attached_is_locked(
    database: Database, start_stream: StartStream, caplog: pytest.LogCaptureFixture
) -> None:
    database.execute(PARTITIONED)
    run = start_stream()
    run.backfill()
    run.give_up_after(0.02)
    database.execute(
        "CREATE TABLE top (LIKE t INCLUDING ALL); INSERT INTO top VALUES (250, 'v');"
        "ALTER TABLE t ATTACH PARTITION top FOR VALUES FROM (200) TO (300)"
    )
    with in_transaction(database, "LOCK TABLE top"):
        database.execute("INSERT INTO t VALUES (150, 'new')")
        run.catch_up()
    assert (150,) in run.fold.rows
    assert logged(caplog) == []
    database.execute("INSERT INTO t VALUES (151, 'new')")
    run.catch_up()
    (warning,) = logged(caplog)
    assert warning.startswith('partition "public"."top" of "public"."t" was attached, and has rows')


@pytest.mark.parametrize("statement", ["LOCK TABLE other, t", "DROP TABLE other"])
def test_changes_are_followed_while_a_table_of_the_publication_is_locked(
    database: Database, start_stream: StartStream, statement: str
) -> None:
    table_of(database, 20)
    database.execute("CREATE TABLE other (id int PRIMARY KEY); CREATE PUBLICATION feed FOR ALL TABLES")
    run = start_stream(publicationName="feed", sessionInitStatement=WAITS_FOR_NOBODY)
    run.backfill()
    run.give_up_after(0.02)
    database.execute("UPDATE t SET v = 'new' WHERE id = 1")
    with in_transaction(database, statement):
        run.catch_up()
    run.finish()


PUBLISHED = {
    "nothing": "",
    "a plain table": "FOR TABLE plain",
    "some columns of it": "FOR TABLE plain (id, v)",
    "some rows of it": "FOR TABLE plain WHERE (id > 5)",
    "a partitioned table": "FOR TABLE t",
    "it and a partition": "FOR TABLE t, low (id)",
    "a table between": "FOR TABLE middle",
    "a partition": "FOR TABLE low WHERE (id > 5)",
    "a schema": "FOR TABLES IN SCHEMA public",
    "another schema": "FOR TABLES IN SCHEMA elsewhere",
    "a schema and a table in it": "FOR TABLES IN SCHEMA public, TABLE plain WHERE (id > 5)",
    "two schemas": "FOR TABLES IN SCHEMA public, elsewhere",
    "all tables": "FOR ALL TABLES",
}
LEAVING_OUT = {
    "all tables but a plain one": "FOR ALL TABLES EXCEPT (TABLE plain)",
    "all tables but a partitioned one": "FOR ALL TABLES EXCEPT (TABLE t)",
    "all tables but two": "FOR ALL TABLES EXCEPT (TABLE t, plain)",
}


@pytest.mark.parametrize(
    "way", ["publish_via_partition_root", "publish_generated_columns = stored", "publish = insert"]
)
def test_what_is_published_is_what_the_server_says(database: Database, way: str) -> None:
    require_version(database, 160_000, "the look into the catalogs")
    if "generated" in way:
        require_version(database, 180_000, "the publication of generated columns")
    database.execute(
        "CREATE SCHEMA elsewhere;"
        "CREATE TABLE plain (id int PRIMARY KEY, gone int, v text, twice int GENERATED ALWAYS AS (id * 2) STORED);"
        "ALTER TABLE plain DROP gone; CREATE UNLOGGED TABLE unlogged (id int); CREATE VIEW view AS SELECT 1;"
        "CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE middle PARTITION OF t FOR VALUES FROM (0) TO (100) PARTITION BY RANGE (id);"
        "CREATE TABLE low PARTITION OF middle FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE elsewhere.high PARTITION OF t FOR VALUES FROM (100) TO (200)"
    )
    names = ["plain", "unlogged", "view", "t", "middle", "low", "elsewhere.high"]
    with database.connect() as session:
        cases = {**PUBLISHED, **(LEAVING_OUT if database.server.version >= 190_000 else {})}
        for number, (what, of) in enumerate(cases.items()):
            session.execute(f"CREATE PUBLICATION p{number} {of} WITH ({way})".encode())
            for name in names:
                ((oid,),) = session.execute("SELECT %s::regclass::oid::int8", [name]).fetchall()
                asked = {"name": f"p{number}", "oid": oid}
                row = session.execute(published._BY_VIEW, asked).fetchone()
                found = published.listed(session, f"p{number}", oid)
                assert (found is None) == (row is None), (what, name)
                if found is not None and row is not None:
                    assert set(found["attnames"]) == set(row[0]["attnames"]), (what, name)
                    assert bool(found["rowfilter"]) == bool(row[0]["rowfilter"]), (what, name)


def test_a_slot_is_waited_for_whatever_the_database_sets_for_locks(
    database: Database, start_stream: StartStream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("backfill.upstream.postgres.replication.blockers.SAY_AFTER", 0.3)
    table_of(database, 20)
    database.execute(f"CREATE TABLE other (id int); ALTER DATABASE {database.name} SET lock_timeout = '10ms'")
    run = start_stream()
    run.give_up_after(0.02)
    with caplog.at_level(logging.WARNING, "backfill"), ThreadPoolExecutor() as threads:
        with in_transaction(database, "INSERT INTO other VALUES (1)"):
            begun = threads.submit(run.batch)
            eventually(lambda: "waiting for replication slot" in caplog.text or begun.done())
        assert begun.result()
    run.finish()


def test_a_wait_that_no_transaction_causes_is_not_reported_as_caused_by_one(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As where the answer takes seconds to come over a slow link."""
    monkeypatch.setattr(blockers, "SAY_AFTER", 0.05)
    connector = Connector.of_options(parse({**database.options, "dbtable": "t"}, streaming=False))
    with (
        caplog.at_level(logging.WARNING, "backfill"),
        connector.session() as session,
        blockers.logging_blockers(connector, session, "publication p"),
    ):
        own = f"its process is {session.info.backend_pid}, idle (ClientRead)"
        slow = "no open transaction blocks it: the network or the server is slow"
        eventually(lambda: f"p: {slow}; {own}" in caplog.text)


def test_what_a_role_may_not_see_of_its_own_process_is_not_reported(
    database: Database, stranger: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(blockers, "SAY_AFTER", 0.05)
    options = {**database.options, "dbtable": "t", "sessionInitStatement": f"SET ROLE {stranger}"}
    connector = Connector.of_options(parse(options, streaming=False))
    with (
        caplog.at_level(logging.WARNING, "backfill"),
        connector.session() as session,
        blockers.logging_blockers(connector, session, "publication p"),
    ):
        own = f"the server is slow; its process is {session.info.backend_pid}"
        eventually(lambda: f"{own}\n" in caplog.text)


def test_a_slot_that_waits_for_a_standby_is_reported(
    start_postgres: Callable[..., LocalServer],
    start_stream: StartStream,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("backfill.upstream.postgres.replication.blockers.SAY_AFTER", 0.3)
    database = Database(start_postgres(), "postgres")
    require_version(database, 170_000, "a failover slot")
    table_of(database, 20)
    database.execute("CREATE PUBLICATION p FOR TABLE t")
    database.execute("SELECT pg_create_physical_replication_slot('away', true)")
    database.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput', failover => true)")
    run = start_stream(database=database, slotName="s", publicationName="p")
    run.backfill()
    database.execute("ALTER SYSTEM SET synchronized_standby_slots = 'away'")
    database.execute("SELECT pg_reload_conf()")
    eventually(lambda: database.execute("SHOW synchronized_standby_slots") == [("away",)])
    database.execute("UPDATE t SET v = 'new'")
    with caplog.at_level(logging.WARNING, "backfill"), ThreadPoolExecutor() as threads:
        following = threads.submit(run.batch)
        eventually(lambda: "waiting for changes of replication slot s: no standby is connected" in caplog.text)
        named = ("--option", "slotName=s", "--option", "publicationName=p")
        assert main(["doctor", "--url", run.options["url"], "--dbtable", "t", *named]) == 0
        assert "would wait: no standby is connected to the slot away. " in capsys.readouterr().out
        database.execute("ALTER SYSTEM RESET synchronized_standby_slots")
        database.execute("SELECT pg_reload_conf()")
        assert following.result()
    run.finish()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at the table that meets a lock is given up soon."""
    for name in ("IN_SESSION", "IN_TRANSACTION"):
        monkeypatch.setattr(locks, name, getattr(locks, name).replace(locks.LOCK_TIMEOUT, "100ms"))


@pytest.mark.usefixtures("soon")
def test_a_reader_that_meets_a_lock_says_so_and_reads_when_it_is_gone(
    database: Database, start_stream: StartStream, caplog: pytest.LogCaptureFixture
) -> None:
    table_of(database, 20)
    run = start_stream()
    assert run.plan()
    (part,) = run.parts()
    with in_transaction(database, "LOCK TABLE t"), caplog.at_level(logging.WARNING, "backfill"):
        run.give_up_after(0.02)
        with pytest.raises(TableLockedError, match="ALTER TABLE, VACUUM FULL and TRUNCATE"):
            run.read_part(part)
        with pytest.raises(TableLockedError, match="ALTER TABLE, VACUUM FULL and TRUNCATE"):
            list(run.upstream.reader().scan([WHOLE_TABLE]))
        assert "trying again" in caplog.text
    run.batch()
    run.finish()


LOOKS: dict[str, tuple[dict[str, str], Callable[[PostgresUpstream], object]]] = {
    "by a filter": ({"filter": "id > 1"}, PostgresUpstream.schema),
    "by a snapshotFilter": ({"snapshotFilter": "id > 1"}, PostgresUpstream.schema),
    "for a range": ({}, lambda upstream: upstream.range_of(("1",), ("9",))),
    "for the vnodes": ({}, lambda upstream: upstream.bounds(4)),
}


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("look", LOOKS)
def test_a_look_at_a_locked_table_is_given_up_and_tried_again(
    database: Database, caplog: pytest.LogCaptureFixture, look: str
) -> None:
    table_of(database, 20)
    options, looks = LOOKS[look]
    upstream = PostgresUpstream(parse({**database.options, "dbtable": "t", **options}), RetryPolicy(give_up_after=1))
    with closing(upstream), in_transaction(database, "LOCK TABLE t"), caplog.at_level(logging.WARNING, "backfill"):
        with pytest.raises(TableLockedError, match="ALTER TABLE, VACUUM FULL and TRUNCATE"):
            looks(upstream)
        assert "trying again" in caplog.text


@pytest.mark.usefixtures("soon")
def test_a_table_that_is_locked_before_its_vnodes_are_cut_is_reported_as_such(
    database: Database, start_stream: StartStream
) -> None:
    database.execute(PARTITIONED)
    run = start_stream(startupMode="snapshot")
    run.give_up_after(0.02)
    with (
        in_transaction(database, "LOCK TABLE low"),
        pytest.raises(TableLockedError, match="ALTER TABLE, VACUUM FULL and TRUNCATE"),
    ):
        run.batch()
    run.batch()
    run.require_equal()


@pytest.mark.parametrize("statement", ["CREATE INDEX CONCURRENTLY built ON t (v)", "REINDEX TABLE CONCURRENTLY t"])
def test_an_index_is_built_while_a_stream_waits_to_begin(
    database: Database, start_stream: StartStream, statement: str
) -> None:
    """Both want the same lock, and building an index waits in the end for each older snapshot. A stream that had such a
    snapshot while it waits for the lock would cause a deadlock, which the server ends by ending the building.
    """
    table_of(database, 40)
    run = start_stream()
    database.execute(f"ALTER DATABASE {database.name} SET deadlock_timeout = '50ms'")
    waiting = (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' "
        "AND query_start < now() - interval '200ms'"
    )  # Of two that wait for one another the server ends the last to look for a deadlock: the one that came later.

    def waits_for(count: int) -> None:
        eventually(lambda: len(database.execute(waiting)) == count)

    with ThreadPoolExecutor() as pool:
        with in_transaction(database, "UPDATE t SET v = 'new' WHERE id = 1"):
            built = pool.submit(database.execute, statement)
            waits_for(1)
            begun = pool.submit(run.batch)
            waits_for(2)
        built.result(30)
        assert begun.result(30)
    assert database.execute("SELECT indexrelid FROM pg_index WHERE NOT indisvalid") == []
    run.finish()


def test_an_index_is_built_on_a_partition_while_a_stream_begins(database: Database, start_stream: StartStream) -> None:
    database.execute(PARTITIONED)
    run = start_stream(sessionInitStatement=WAITS_FOR_NOBODY)
    with in_transaction(database, "LOCK TABLE low IN SHARE UPDATE EXCLUSIVE MODE"):  # As CREATE INDEX CONCURRENTLY has.
        run.backfill()
    run.finish()


def test_a_stream_begins_and_is_dropped_while_the_synchronous_standby_is_away(
    start_postgres: Callable[..., LocalServer], start_stream: StartStream
) -> None:
    """Whoever else commits waits for it, and nothing says why."""
    database = Database(start_postgres(), "postgres")
    table_of(database, 40)
    run = start_stream(database=database)
    drop = ["drop", "--state-dir", run.options["stateDir"], "--url", run.options["url"]]

    def live() -> int:
        run.backfill(20)
        run.stop()
        return main(drop)

    with ThreadPoolExecutor(1) as pool, no_standby(database):
        assert pool.submit(live).result(30) == 0
    assert database.execute("SELECT pubname FROM pg_publication") == []
