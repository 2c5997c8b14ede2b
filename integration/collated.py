"""Keys whose columns are given another collation, and streams that follow the log after such a table was read."""

from __future__ import annotations

from integration.stream_harness import StreamRun

COLLATED = (
    'CREATE TABLE t (id text COLLATE "{}" PRIMARY KEY, v text);'
    "INSERT INTO t SELECT chr(65 + i % 7 + i % 2 * 32) || i, 'v' FROM generate_series(1, 100) i; ANALYZE t"
)
COLLATE = 'ALTER TABLE t ALTER id TYPE text COLLATE "{}"'


def followed(run: StreamRun) -> StreamRun:
    """Runs the stream until its backfill is long over; returns it."""
    run.backfill()
    run.database.execute("UPDATE t SET v = 'in the log'")
    run.catch_up()
    assert not run.barrier().has_manifest
    return run
