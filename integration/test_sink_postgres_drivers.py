"""A driver of a query that was thought dead writes to the target beside its successor, or beside a new beginning."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from backfill.errors import DatabaseSetupError, TableLockedError
from backfill.sinks.postgres import apply_to, start_over
from backfill.sinks.postgres.merge import merge
from backfill.upstream.postgres.session.retries import RetryPolicy
from integration.copies import batch_of, inserts, sink, wait_for_locks
from integration.database import Database
from integration.servers.address import as_uri
from integration.waiting import eventually
from tests.collected import Rows

BARRED = """
    CREATE TABLE copy (id int PRIMARY KEY);
    CREATE FUNCTION pass() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_advisory_xact_lock_shared(17); RETURN OLD; END $$;
"""
AT_COMMIT = """
    CREATE CONSTRAINT TRIGGER bar AFTER INSERT ON copy DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    EXECUTE FUNCTION pass()
"""
AT_DELETE = "CREATE TRIGGER bar BEFORE DELETE ON copy FOR EACH ROW EXECUTE FUNCTION pass()"


@contextmanager
def barred(database: Database) -> Iterator[None]:
    """Makes whoever comes to the trigger `bar` wait there until the block ends."""
    with database.connect() as connection:
        connection.execute("SELECT pg_advisory_xact_lock(17)")
        yield


def wait_until_waiting(database: Database, sessions: int) -> None:
    waiting = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    eventually(lambda: len(database.execute(waiting)) == sessions)


def test_a_driver_that_was_thought_dead_and_its_successor_apply_a_batch_once(
    database: Database, tmp_path: Path
) -> None:
    database.execute(
        "CREATE TABLE copy (id int PRIMARY KEY); CREATE TABLE written (id int);"
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN INSERT INTO written VALUES (NEW.id); RETURN NULL; END $$;"
        "CREATE TRIGGER note AFTER INSERT OR UPDATE ON copy FOR EACH ROW EXECUTE FUNCTION note()"
    )
    apply = sink(database, tmp_path)
    rows = inserts(*range(1000))
    with ThreadPoolExecutor(4) as drivers:
        for done in [drivers.submit(apply, rows, 0) for _ in range(4)]:
            done.result()
    assert database.execute("SELECT count(*) FROM written") == [(1000,)]


def test_a_driver_that_goes_on_in_the_midst_of_a_batch_undoes_nothing_of_its_successor(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute("CREATE TABLE copy (id int PRIMARY KEY, v int)")
    apply = sink(database, tmp_path)

    def batch(number: int) -> Rows:
        return batch_of({"id": 7, "v": number, "_commit_version": number, "_sequence": number})

    def successor() -> None:
        apply(batch(1), 1)
        apply(batch(2), 2)

    apply(batch(0), 0)
    calls, inside, go = itertools.count(), threading.Event(), threading.Event()

    def merging(*given: Any) -> list[str]:
        if next(calls) == 0:
            inside.set()
            assert go.wait(600)
        return merge(*given)

    monkeypatch.setattr("backfill.sinks.postgres.merge", merging)
    with ThreadPoolExecutor(2) as drivers:
        try:
            dead = drivers.submit(apply, batch(1), 1)
            assert inside.wait(600)
            new = drivers.submit(successor)
            wait_until_waiting(database, 1)
        finally:
            go.set()
        dead.result()
        new.result()
    assert database.execute("TABLE copy") == [(7, 2)]
    assert database.execute("SELECT batch_id FROM backfill_batches") == [(2,)]


def test_starting_over_waits_for_a_driver_that_is_in_its_commit(database: Database, tmp_path: Path) -> None:
    url = database.url(tmp_path)
    database.execute(BARRED + AT_COMMIT)
    apply = sink(database, tmp_path)
    apply(inserts(1), 0)
    with ThreadPoolExecutor(2) as drivers:
        with barred(database):
            dead = drivers.submit(apply, inserts(2), 1)
            wait_until_waiting(database, 1)
            begun = drivers.submit(start_over, url=url, table="copy", query="t")
            wait_until_waiting(database, 2)
        dead.result()
        begun.result()
    assert database.execute("TABLE copy") == database.execute("TABLE backfill_batches") == []


def test_a_driver_that_comes_while_the_target_is_emptied_begins_after_it(database: Database, tmp_path: Path) -> None:
    url = database.url(tmp_path)
    database.execute(BARRED + AT_DELETE)
    apply = sink(database, tmp_path)
    apply(inserts(1), 0)
    with ThreadPoolExecutor(2) as drivers:
        with barred(database):
            begun = drivers.submit(start_over, url=url, table="copy", query="t")
            wait_until_waiting(database, 1)
            new = drivers.submit(apply, inserts(2), 0)
            wait_until_waiting(database, 2)
        begun.result()
        new.result()
    assert database.execute("TABLE copy") == [(2,)]
    assert database.execute("SELECT batch_id FROM backfill_batches") == [(0,)]


@pytest.mark.parametrize("lock", ["LOCK TABLE copy", "UPDATE copy SET id = id", "DELETE FROM backfill_batches"])
def test_starting_over_waits_for_a_lock_of_somebody_else_and_says_so(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lock: str
) -> None:
    wait_for_locks(monkeypatch, "100ms")
    url = database.url(tmp_path)
    database.execute("CREATE TABLE copy (id int PRIMARY KEY)")
    sink(database, tmp_path)(inserts(1), 0)
    with database.connect() as somebody:
        somebody.execute(lock.encode())
        with monkeypatch.context() as soon:
            soon.setattr("backfill.sinks.postgres.RetryPolicy", partial(RetryPolicy, give_up_after=0.5))
            with pytest.raises(TableLockedError, match="a lock on the sink's table or on a row of it"):
                start_over(url=url, table="copy", query="t")
        threading.Timer(0.5, somebody.rollback).start()
        start_over(url=url, table="copy", query="t")
    assert database.execute("TABLE copy") == database.execute("TABLE backfill_batches") == []


def test_the_first_batches_of_two_tables_do_not_wait_for_each_other(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute(BARRED + AT_COMMIT + "; CREATE TABLE other (id int PRIMARY KEY)")
    with ThreadPoolExecutor(1) as drivers:
        with barred(database):
            slow = drivers.submit(sink(database, tmp_path), inserts(1), 0)
            wait_until_waiting(database, 1)
            wait_for_locks(monkeypatch, "1s")
            monkeypatch.setattr("backfill.sinks.postgres.RetryPolicy", partial(RetryPolicy, give_up_after=0.5))
            sink(database, tmp_path, table="other", query="o")(inserts(2), 0)
        slow.result()
    assert database.execute("SELECT query, batch_id FROM backfill_batches ORDER BY 1") == [("o", 0), ("t", 0)]


def test_a_role_that_may_not_make_temporary_tables_is_told_which_right_is_missing(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is not that its connection was refused."""
    role = database.name
    monkeypatch.setenv("PGPASSWORD", "narrow")
    database.execute(
        f"CREATE TABLE copy (id int PRIMARY KEY); CREATE ROLE {role} LOGIN PASSWORD 'narrow';"
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON copy TO {role}; GRANT CREATE ON SCHEMA public TO {role};"
        f"REVOKE TEMPORARY ON DATABASE {role} FROM PUBLIC"
    )
    url = as_uri(database.dsn, user=role, password=None)
    apply = apply_to(url=url, table="copy", key=["id"], query="t")
    with pytest.raises(DatabaseSetupError, match="Run GRANT TEMPORARY ON DATABASE … TO …, and start"):
        apply(inserts(1), 0)
    database.execute(f"GRANT TEMPORARY ON DATABASE {role} TO {role}")
    apply(inserts(1), 0)
    assert database.execute("TABLE copy") == [(1,)]
    # To a session that has made some before, the server says it in other words.
    database.execute(f"REVOKE TEMPORARY ON DATABASE {role} FROM {role}")
    with pytest.raises(DatabaseSetupError, match="GRANT TEMPORARY"):
        apply(inserts(2), 1)


def test_a_trigger_that_lets_nobody_make_a_table_is_reported_at_once(database: Database, tmp_path: Path) -> None:
    """The error is not that there is no connection, after two minutes of trying again."""
    database.execute("CREATE TABLE copy (id int PRIMARY KEY)")
    apply = sink(database, tmp_path)
    apply(inserts(1), 0)
    database.execute(
        "CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'no tables here'; END $$;"
        "CREATE EVENT TRIGGER refuse ON ddl_command_start WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION refuse()"
    )
    with pytest.raises(DatabaseSetupError, match="which a batch is copied into: no tables here"):
        apply(inserts(2), 1)
    database.execute("DROP EVENT TRIGGER refuse")
    apply(inserts(2), 1)
    assert database.execute("SELECT count(*) FROM copy") == [(2,)]


def test_a_table_that_was_not_made_because_somebody_stopped_that_is_made_again(
    database: Database, tmp_path: Path
) -> None:
    """For example by pg_cancel_backend; of the error the driver tells nothing but its words."""
    database.execute(
        "CREATE TABLE copy (id int PRIMARY KEY); CREATE SEQUENCE tries;"
        "CREATE FUNCTION stop() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN IF nextval('tries') = 1 THEN "
        "RAISE EXCEPTION 'canceling statement due to user request' USING ERRCODE = 'query_canceled'; END IF; END $$"
    )
    apply = sink(database, tmp_path)
    apply(inserts(1), 0)
    database.execute(
        "CREATE EVENT TRIGGER stop ON ddl_command_start WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION stop()"
    )
    apply(inserts(2), 1)
    assert database.execute("SELECT count(*), (SELECT last_value FROM tries) FROM copy") == [(2, 2)]
