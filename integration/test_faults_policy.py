"""What is tried again and what is not, by the SQLSTATE that a real server gives, through both drivers."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import TypeAlias

import pytest

from backfill.errors import DefiniteError, SlotBusyError, SnapshotGoneError
from backfill.upstream.postgres.session.connection import Connector
from backfill.upstream.postgres.session.failures import about_snapshot, translating
from backfill.upstream.postgres.session.retries import RetryPolicy
from integration.database import Database

TRANSIENT = {
    "08000": "connection_exception",
    "08006": "connection_failure",
    "40001": "serialization_failure",
    "40P01": "deadlock_detected",
    "53200": "out_of_memory",
    "53300": "too_many_connections",
    "55006": "object_in_use",
    "55P03": "lock_not_available",
    "57014": "query_canceled",
    "57P01": "admin_shutdown",
    "57P02": "crash_shutdown",
    "57P03": "cannot_connect_now",
    "58000": "system_error",
    "58030": "io_error",
}
DEFINITE = {
    "22P02": "invalid_text_representation",
    "23505": "unique_violation",
    "28000": "invalid_authorization_specification",
    "3D000": "invalid_catalog_name",
    "42501": "insufficient_privilege",
    "42601": "syntax_error",
    "42703": "undefined_column",
    "42P01": "undefined_table",
    "53100": "disk_full",
    "53400": "configuration_limit_exceeded",
    "55000": "object_not_in_prerequisite_state",
    "0A000": "feature_not_supported",
    "XX000": "internal_error",
}


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def policy(self, **limits: float) -> RetryPolicy:
        return RetryPolicy(clock=lambda: self.now, sleep=self.sleep, **limits)


class Failing:
    """An operation that fails so many times by what `fail` raises, and then is done."""

    def __init__(self, fail: Callable[[], object], times: int) -> None:
        self._fail, self._left = fail, times
        self.tries = 0
        self.recoveries = 0

    def __call__(self) -> str:
        self.tries += 1
        if self._left > 0:
            self._left -= 1
            self._fail()
        return "done"

    def recover(self) -> None:
        self.recoveries += 1


FailingBy: TypeAlias = Callable[[Database, str], Callable[[], object]]


def failing_by_psycopg(database: Database, state: str) -> Callable[[], object]:
    statement = f"DO $$ BEGIN RAISE EXCEPTION 'made to fail' USING ERRCODE = '{state}'; END $$"
    return lambda: database.execute(statement)


def failing_by_adbc(database: Database, state: str) -> Callable[[], object]:
    connector = Connector.of(database.dsn)
    database.execute(
        "CREATE OR REPLACE FUNCTION failing() RETURNS int LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION 'made to fail' USING ERRCODE = '{state}'; END $$"
    )

    def fail() -> None:
        with connector.arrow_session() as session:
            session.execute("SELECT failing()")

    return fail


DRIVERS = pytest.mark.parametrize("failing", [failing_by_psycopg, failing_by_adbc], ids=["psycopg", "adbc"])


@DRIVERS
def test_what_may_pass_is_tried_again(database: Database, failing: FailingBy) -> None:
    for state, name in TRANSIENT.items():
        operation = Failing(failing(database, state), times=2)
        assert Clock().policy().run(operation, recover=operation.recover) == "done", name
        assert (operation.tries, operation.recoveries) == (3, 2), name


@DRIVERS
def test_what_stays_as_it_is_is_not_tried_again(database: Database, failing: FailingBy) -> None:
    for state, name in DEFINITE.items():
        operation = Failing(failing(database, state), times=2)
        with pytest.raises(DefiniteError, match="made to fail"):
            Clock().policy().run(operation, recover=operation.recover)
        assert operation.tries == 1, name


def test_a_slot_in_use_and_a_snapshot_that_has_ended_are_known_by_name(database: Database) -> None:
    with pytest.raises(SlotBusyError), translating():
        failing_by_psycopg(database, "55006")()
    with pytest.raises(SnapshotGoneError), translating(about_snapshot):
        database.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SET TRANSACTION SNAPSHOT '00000003-0000001B-1'")


def test_an_error_in_the_middle_of_a_bulk_read_is_judged_by_its_state(database: Database) -> None:
    connector = Connector.of(database.dsn)
    sizes: list[int] = []

    def read() -> None:
        with translating(), connector.arrow_session() as session:
            read = session.read("SELECT 1 / (i - 50000) FROM generate_series(1, 60000) i", batch_bytes=4096)
            sizes.extend(batch.num_rows for batch in read)

    with pytest.raises(DefiniteError, match="division by zero"):
        read()
    assert sum(sizes) > 40_000


def test_a_server_that_vanishes_without_a_word_is_given_up_within_a_minute(database: Database) -> None:
    connector = Connector.of(database.dsn)
    with connector.session() as session, socket.socket(fileno=os.dup(session.fileno())) as connection:
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle, interval, count = (
            connection.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
    assert idle + interval * count <= 60
