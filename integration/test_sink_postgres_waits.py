"""A sink whose target is locked, whose session is cut, or whose server is a standby for a while."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backfill.errors import ConnectionLostError, StateError, TableError, TableLockedError
from backfill.sinks.postgres import PostgresSink
from backfill.upstream.postgres.session.retries import RetryPolicy
from integration.copies import batch_of, inserts, sink, wait_for_locks
from integration.database import Database
from integration.servers import LocalServer
from integration.sessions import EVERY, sessions, terminate
from integration.standby import become_primary, become_standby, no_standby
from integration.waiting import eventually
from tests.collected import Rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    Apply = Callable[[DataFrame, int], None]


@pytest.mark.parametrize("lock", ["LOCK TABLE copy", "UPDATE copy SET id = id"], ids=["table", "row"])
def test_a_lock_of_somebody_else_is_waited_for_and_logged(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lock: str
) -> None:
    wait_for_locks(monkeypatch, "100ms")
    database.execute("CREATE TABLE copy (id int PRIMARY KEY); INSERT INTO copy VALUES (1)")
    apply = sink(database, tmp_path)
    rows = batch_of({"id": 1, "_change_type": "delete"})
    with database.connect() as somebody:
        somebody.execute(lock.encode())
        with pytest.raises(TableLockedError, match="a lock on the sink's table or on a row of it"):
            replace(apply, retries=RetryPolicy(give_up_after=0.5))(rows, 0)
        threading.Timer(0.5, somebody.rollback).start()
        apply(rows, 0)
    assert database.execute("TABLE copy") == []


def test_a_commit_that_waits_for_a_standby_is_distinguished_from_a_lock(
    own_database: tuple[LocalServer, Database], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example the commit of the same batch by a driver that has died since."""
    _, database = own_database
    database.execute("CREATE TABLE copy (id int PRIMARY KEY); INSERT INTO copy VALUES (1)")
    apply = sink(database, tmp_path)
    apply(inserts(2), 0)
    with ThreadPoolExecutor(1) as drivers, no_standby(database):
        drivers.submit(apply, inserts(3), 1)
        eventually(lambda: sessions(database, "wait_event = 'SyncRep'") == 1)
        wait_for_locks(monkeypatch, "100ms")
        with pytest.raises(TableLockedError) as refused:
            replace(apply, retries=RetryPolicy(give_up_after=0))(inserts(3), 1)
        asks = re.search("SELECT .* 'AccessShareLock'", refused.value.message)
        assert asks is not None
        assert "SyncRep" in {row[3] for row in database.execute(asks[0])}


def test_a_batch_without_rows_waits_for_no_lock_of_the_table(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE copy (id int PRIMARY KEY)")
    apply = replace(sink(database, tmp_path), retries=RetryPolicy(give_up_after=0))
    apply(inserts(1), 0)
    with database.connect() as somebody:
        somebody.execute("LOCK TABLE copy")
        apply(Rows(inserts(1).toArrow().slice(0, 0)), 1)
    assert database.execute("SELECT batch_id FROM backfill_batches") == [(1,)]


@contextmanager
def altering(database: Database, change: str, apply: PostgresSink, rows: Rows) -> Iterator[Future[None]]:
    """Commits the change of the target once batch 1 waits for it; yields the future of that batch."""
    with database.connect() as somebody, ThreadPoolExecutor(1) as drivers:
        somebody.execute(change.encode())
        applied = drivers.submit(apply, rows, 1)
        eventually(lambda: sessions(database, "wait_event_type = 'Lock'") == 1)
        somebody.commit()
        yield applied


def test_a_column_that_is_altered_while_a_batch_waits_rounds_nothing(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE copy (id int PRIMARY KEY, v numeric)")
    apply = sink(database, tmp_path)
    apply(batch_of({"id": 1, "v": Decimal("1.25")}), 0)
    change = "ALTER TABLE copy ALTER v TYPE numeric(10, 1)"
    with (
        altering(database, change, apply, batch_of({"id": 2, "v": Decimal("2.25")})) as applied,
        pytest.raises(TableError, match=r'"v" of the table .* is numeric\(10,1\), which would round'),
    ):
        applied.result()
    assert database.execute("SELECT id FROM copy") == [(1,)]


def test_a_key_that_gets_another_name_while_a_batch_waits_is_found(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE copy (id int PRIMARY KEY)")
    apply = sink(database, tmp_path)
    apply(inserts(1), 0)
    change = "ALTER TABLE copy DROP CONSTRAINT copy_pkey, ADD CONSTRAINT other PRIMARY KEY (id)"
    with altering(database, change, apply, inserts(2)) as applied:
        applied.result()
    assert database.execute("TABLE copy") == [(1,), (2,)]


def test_a_table_that_is_exchanged_while_a_batch_waits_gets_no_batch(database: Database, tmp_path: Path) -> None:
    """Not even the waiting one: the record would say that the table before has it."""
    database.execute("CREATE TABLE copy (id int PRIMARY KEY)")
    apply = sink(database, tmp_path)
    apply(inserts(1), 0)
    change = "ALTER TABLE copy RENAME TO old; CREATE TABLE copy (LIKE old INCLUDING ALL)"
    with (
        altering(database, change, apply, inserts(2)) as applied,
        pytest.raises(StateError, match=r'"copy" was dropped and made again since the query \'t\' applied batch 0'),
    ):
        applied.result()
    assert database.execute("TABLE copy") == []


def test_a_trigger_that_was_planned_for_another_type_is_planned_anew(database: Database, tmp_path: Path) -> None:
    """The session that it was planned in would refuse each batch from then on."""
    database.execute(
        "CREATE TABLE copy (id int PRIMARY KEY, v int, next bigint);"
        "CREATE FUNCTION plan() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.next := NEW.v + 1; RETURN NEW; END $$;"
        "CREATE TRIGGER plan BEFORE INSERT ON copy FOR EACH ROW EXECUTE FUNCTION plan()"
    )
    apply = sink(database, tmp_path)
    apply(batch_of({"id": 1, "v": 1}), 0)
    database.execute("ALTER TABLE copy ALTER v TYPE bigint")
    apply(batch_of({"id": 2, "v": 2}), 1)
    assert database.execute("TABLE copy") == [(1, 1, 2), (2, 2, 3)]


def test_a_session_that_was_cut_between_two_batches_is_made_anew(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE copy (id int PRIMARY KEY)")
    apply = sink(database, tmp_path)
    for number in range(3):
        apply(inserts(number), number)
        assert terminate(database, EVERY) > 0
    assert database.execute("TABLE copy") == [(0,), (1,), (2,)]


def test_a_sink_waits_for_a_primary_that_is_a_standby_for_a_while(
    own_database: tuple[LocalServer, Database], tmp_path: Path
) -> None:
    server, database = own_database
    database.execute("CREATE TABLE copy (id int PRIMARY KEY)")
    apply = sink(database, tmp_path)
    become_standby(server)
    with pytest.raises(ConnectionLostError, match="the server of the sink's table is a standby; point url at the"):
        replace(apply, retries=RetryPolicy(give_up_after=0.5))(inserts(1), 0)
    become_primary(server)
    apply(inserts(1), 0)
    assert database.execute("TABLE copy") == [(1,)]
