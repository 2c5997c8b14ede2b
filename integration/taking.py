"""Somebody else takes the table for themselves, and may have to wait for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from backfill.errors import StagingError, TransientError
from integration.database import Database
from integration.stream_harness import StreamRun

TRUNCATE = "TRUNCATE t; INSERT INTO t SELECT i, 'after' FROM generate_series(5, 60, 5) i"


@contextmanager
def waiting(database: Database, statement: str) -> Iterator[list[BaseException]]:
    """Somebody else runs a statement, which may have to wait, but not for ever; yields what went wrong with it."""
    errors: list[BaseException] = []
    client = database.connect(autocommit=True)
    client.execute("SET lock_timeout = '1min'")  # Half of what readers try again for.

    def run() -> None:
        try:
            client.execute(statement.encode())
        except psycopg.Error as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    blocked = "SELECT pid FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
    while thread.is_alive() and not database.execute(blocked, [client.info.backend_pid]):
        pass
    yield errors
    thread.join()
    client.close()


def read_to_the_end(run: StreamRun, max_rows: int) -> None:
    """Reads to the end as Spark's user would: where the query fails because a state is gone, it is started again."""
    for _ in range(100):
        try:
            if not run.batch(max_rows):
                return
        except (StagingError, TransientError):
            run.restart()
    raise AssertionError("no end of it")
