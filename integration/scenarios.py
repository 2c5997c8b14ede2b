"""Streams at the moments at which somebody takes away what they depend on."""

from __future__ import annotations

from typing import Final

import pytest

from backfill.errors import DefiniteError
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.stream_harness import StreamRun, table_of

WHEN = {"in the middle of the backfill": 30, "while the log is followed": 200}
RESTARTS = pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
BACKFILLED = pytest.mark.parametrize("rows", [20, 200], ids=["in the middle of the backfill", "after it"])
AT_ANY_TIME = pytest.mark.parametrize("when", WHEN)

KEEPS_LITTLE: Final = {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
"""Settings of a server on which `invalidate` is soon done."""


def invalidate(database: Database) -> None:
    """Writes log until the server's only slot has held back too much, and is lost."""
    while database.execute("SELECT wal_status FROM pg_replication_slots") != [("lost",)]:
        database.execute("SELECT pg_switch_wal() FROM pg_logical_emit_message(false, '', repeat('x', 1000))")
        database.execute("CHECKPOINT")


def started(start_stream: StartStream, when: str, **options: str) -> StreamRun:
    run = start_stream(vnodeCount="4", numPartitions="2", **options)
    table_of(run.database, 100)
    return following(run, when)


def following(run: StreamRun, when: str) -> StreamRun:
    run.batch(WHEN[when])
    run.database.execute("UPDATE t SET v = 'read' WHERE id < 10")
    run.batch(WHEN[when])
    return run


def refused(run: StreamRun, kind: type[DefiniteError], match: str, *, restarts: bool) -> None:
    """Requires that the stream goes no further, in this process or in a new one, and emits nothing."""
    rows = dict(run.fold.rows)
    for _ in range(2):
        if restarts:
            run.restart()
        with pytest.raises(kind, match=match):
            run.catch_up(30)
        assert run.fold.rows == rows
        restarts = True


def ended(run: StreamRun, kind: type[DefiniteError], match: str) -> None:
    """Requires that the stream ends before it emits more, and that the next process ends too, for whatever reason."""
    rows = dict(run.fold.rows)
    with pytest.raises(kind, match=match):
        run.catch_up(20)
    assert run.fold.rows == rows
    run.restart()
    with pytest.raises(DefiniteError):
        run.catch_up(20)
