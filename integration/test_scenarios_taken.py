"""Statements that take the table for themselves while it is read."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from backfill.errors import SnapshotGoneError, StagingError, TransientError
from backfill.upstream.postgres.snapshot import entering
from backfill.vnode import WHOLE_TABLE
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.stream_harness import table_of
from integration.taking import TRUNCATE, read_to_the_end, waiting
from integration.versions import require_version
from integration.waiting import eventually


@contextmanager
def truncating(database: Database) -> Iterator[None]:
    """Truncates the table and writes to it in a transaction that is committed once the body waits for it."""
    blocked = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with database.connect() as writer, ThreadPoolExecutor() as threads:
        writer.execute(TRUNCATE.encode())

        def commit() -> None:
            while not database.execute(blocked):
                pass
            writer.commit()

        committed = threads.submit(commit)
        yield
        committed.result()


def test_a_table_that_is_truncated_while_its_state_is_taken_is_read_as_it_is_afterwards(
    database: Database, start_stream: StartStream
) -> None:
    """By then the table looks empty in the state that was to be taken."""
    table_of(database, 100)
    run = start_stream(onTruncate="emit")
    run.batch(20)
    with truncating(database):
        run.judged_batch(30)
    run.finish()
    reader = run.upstream.reader()
    with truncating(database):
        rows = [row for batch in reader.scan([WHOLE_TABLE]) for row in batch.to_pylist()]
    assert [row["id"] for row in rows] == list(range(5, 61, 5))


def test_a_read_of_a_table_that_is_truncated_once_its_files_were_looked_at_is_not_empty(
    database: Database, start_stream: StartStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    table_of(database, 100)
    reader = start_stream().upstream.reader()
    stored, looks = entering.stored, itertools.count()
    with ExitStack() as stack:

        def then_truncating(cursor: Any, table: Any) -> str:
            found = stored(cursor, table)
            if next(looks) == 0:
                stack.enter_context(truncating(database))
            return found

        monkeypatch.setattr(entering, "stored", then_truncating)
        rows = [row for batch in reader.scan([WHOLE_TABLE]) for row in batch.to_pylist()]
    assert sorted(row["id"] for row in rows) == list(range(5, 61, 5))
    assert next(looks) > 1


def test_nothing_is_held_open_once_the_last_chunk_is_read(database: Database, start_stream: StartStream) -> None:
    table_of(database, 20)
    run = start_stream()
    run.batch()
    assert run.backfilled
    run.batch()
    open_transactions = (
        "SELECT query FROM pg_stat_activity "
        "WHERE datname = current_database() AND backend_xmin IS NOT NULL AND pid <> pg_backend_pid()"
    )
    eventually(lambda: database.execute(open_transactions) == [])  # A session that was closed ends a moment later.


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("ALTER TABLE t ADD COLUMN extra int", id="a column is added"),
        pytest.param("ALTER TABLE t ADD COLUMN extra float8 DEFAULT random()", id="the table is rewritten"),
        pytest.param("BEGIN; LOCK TABLE t; UPDATE t SET v = 'locked' WHERE id < 5; COMMIT", id="the table is locked"),
        pytest.param("VACUUM (FULL) t", id="the table is written anew by VACUUM FULL"),
        pytest.param("REPACK (CONCURRENTLY) t", id="the table is repacked"),
        pytest.param(
            f"{TRUNCATE}; INSERT INTO t SELECT i, 'far' FROM generate_series(100, 45000, 100) i", id="truncated"
        ),
    ],
)
@pytest.mark.parametrize("read_first", [False, True], ids=["before the first reader", "between two readers"])
def test_whoever_takes_the_table_while_a_batch_is_read_waits_for_single_readers_only(
    database: Database, start_stream: StartStream, statement: str, *, read_first: bool
) -> None:
    """Otherwise readers would wait for it in the server's queue, it for the batch, and the batch for its readers."""
    if "REPACK" in statement:
        require_version(database, 190_000, "REPACK")
    table_of(database, 45_000)
    run = start_stream(onTruncate="emit", columns="id,v", select="id, v", vnodeCount="6", numPartitions="2")
    run.batch(2000)
    run.plan(1_000_000)
    parts = list(run.parts())
    assert len(parts) == 2
    if read_first:
        run.read_part(parts.pop(0))
    with waiting(database, statement) as errors:
        for part in parts:
            try:
                run.read_part(part)
            except (StagingError, TransientError):
                run.restart()
                break
    assert not errors
    read_to_the_end(run, 1_000_000)
    run.finish()


PARTITIONED = """
    CREATE TABLE t (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id);
    CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (31);
    CREATE TABLE high PARTITION OF t FOR VALUES FROM (31) TO (100);
    CREATE TABLE unused PARTITION OF t FOR VALUES FROM (100) TO (200);
    INSERT INTO t SELECT i, 'v' FROM generate_series(1, 60) i;
    CREATE TABLE apart (id int PRIMARY KEY, v text);
    ANALYZE t;
"""


@pytest.mark.parametrize("planned", [False, True], ids=["before readers are planned", "before they read"])
@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE more PARTITION OF t FOR VALUES FROM (200) TO (300)",
        "CREATE TABLE more PARTITION OF t FOR VALUES FROM (200) TO (300); DROP TABLE unused",
        "ALTER TABLE t DETACH PARTITION unused",
        "ALTER TABLE t ATTACH PARTITION apart FOR VALUES FROM (200) TO (300)",
        "TRUNCATE unused",
    ],
)
def test_empty_partitions_come_and_go_while_a_chunk_is_read(
    database: Database, start_stream: StartStream, statement: str, *, planned: bool
) -> None:
    """A job that maintains daily partitions may do this once an hour."""
    database.execute(PARTITIONED)
    run = start_stream(vnodeCount="3", numPartitions="2")
    run.batch(15)
    run.plan(15)
    if not planned:
        database.execute(statement)
    parts = run.parts()
    if planned:
        database.execute(statement)
    run.commit([row for part in parts for row in run.read_part(part)])
    run.finish()


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t DETACH PARTITION high",
        "DROP TABLE high",
        "INSERT INTO apart VALUES (250); ALTER TABLE t ATTACH PARTITION apart FOR VALUES FROM (200) TO (300)",
        "VACUUM (FULL) high",
        "BEGIN; TRUNCATE unused; COPY unused FROM PROGRAM 'echo 150,new' WITH (FREEZE, FORMAT csv); COMMIT",
    ],
)
def test_partitions_with_rows_do_not(database: Database, start_stream: StartStream, statement: str) -> None:
    database.execute(PARTITIONED)
    run = start_stream(vnodeCount="1", numPartitions="1")
    run.batch(15)
    run.plan(100)
    (part,) = run.parts()
    with database.connect(autocommit=True) as client:
        for each in statement.split("; "):
            client.execute(each.encode())
    with pytest.raises(SnapshotGoneError, match="a partition with rows was attached, detached or dropped"):
        run.read_part(part)
