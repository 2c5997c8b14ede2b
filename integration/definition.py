"""Streams that stand where the table's definition is about to change."""

from __future__ import annotations

import pytest

from backfill.errors import DefiniteError
from integration.fixtures.streams import StartStream
from integration.stream_harness import StreamRun

WHEN = {"between chunks": 30, "between the snapshot and the log": 200, "in the log": 200}

REPLACED = {
    "dropped and added again": "ALTER TABLE t DROP COLUMN v; ALTER TABLE t ADD COLUMN v text",
    "exchanged with another": "ALTER TABLE t RENAME v TO x; ALTER TABLE t RENAME w TO v; ALTER TABLE t RENAME x TO w",
}
"""Ways in which another column takes the name `v`; it looks the same in the change log."""


def started(start_stream: StartStream, when: str, **options: str) -> StreamRun:
    """A stream that stands where the definition is about to change."""
    run = start_stream(vnodeCount="4", numPartitions="2", **options)
    run.batch(WHEN[when])
    if when == "in the log":
        run.database.execute("UPDATE t SET v = 'in the log' WHERE id < 10")
        run.catch_up()
    return run


def refused(run: StreamRun, kind: type[DefiniteError], match: str) -> None:
    """Requires that the stream goes no further, and has emitted nothing of what it refuses."""
    offsets, rows = len(run.offsets), dict(run.fold.rows)
    with pytest.raises(kind, match=match):
        run.catch_up(30)
    assert run.fold.rows == rows
    assert len(run.offsets) <= offsets + 1
