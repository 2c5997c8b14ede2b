"""A sink whose target is locked, whose session is cut, or whose server is a standby for a while."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backfill.errors import ConnectionLostError, TableLockedError
from backfill.upstream.postgres.session.retries import RetryPolicy
from integration.copies import batch_of, inserts, sink
from integration.database import Database
from integration.servers import LocalServer
from integration.sessions import EVERY, terminate
from integration.standby import become_primary, become_standby

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    Apply = Callable[[DataFrame, int], None]


@pytest.mark.parametrize("lock", ["LOCK TABLE copy", "UPDATE copy SET id = id"], ids=["table", "row"])
def test_a_lock_of_somebody_else_is_waited_for_and_said(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lock: str
) -> None:
    monkeypatch.setattr("backfill.sinks.postgres.LOCK_TIMEOUT", "100ms")
    database.execute("CREATE TABLE copy (id int PRIMARY KEY); INSERT INTO copy VALUES (1)")
    apply = sink(database, tmp_path)
    rows = batch_of({"id": 1, "_change_type": "delete"})
    with database.connect() as somebody:
        somebody.execute(lock.encode())
        with pytest.raises(TableLockedError, match="keeps the sink's table, or a row of it, from being written"):
            replace(apply, retries=RetryPolicy(give_up_after=0.5))(rows, 0)
        threading.Timer(0.5, somebody.rollback).start()
        apply(rows, 0)
    assert database.execute("TABLE copy") == []


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
