"""TRUNCATE at every moment, and statements that take the table for themselves while it is read."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest

from backfill.errors import SnapshotGoneError, StagingError, TransientError, TruncateError
from backfill.upstream.postgres.snapshot import entering
from backfill.vnode import WHOLE_TABLE
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.fold import Row
from integration.stream_harness import StreamRun, table_of
from integration.versions import require_version
from integration.waiting import eventually

TRUNCATE = "TRUNCATE t; INSERT INTO t SELECT i, 'after' FROM generate_series(5, 60, 5) i"


def truncates(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["_change_type"] == "truncate"]


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
    """As Spark's user would: where the query fails because a state is gone, it is started again."""
    for _ in range(100):
        try:
            if not run.batch(max_rows):
                return
        except (StagingError, TransientError):
            run.restart()
    raise AssertionError("no end of it")


def test_a_truncate_before_anything_was_read_leaves_nothing_to_remove(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 100)
    database.execute(TRUNCATE)
    run = start_stream()
    run.backfill(5)
    run.finish()
    assert run.fold.counts == {"insert": 12}


@pytest.mark.parametrize("rows", [50, 150], ids=["in the middle of the backfill", "after the backfill"])
def test_a_truncate_ends_the_stream_before_anything_of_its_batch_is_emitted(
    database: Database, start_stream: StartStream, rows: int
) -> None:
    table_of(database, 100)
    run = start_stream()
    run.batch(rows)
    database.execute(f"UPDATE t SET v = 'before' WHERE id = 1; {TRUNCATE}")
    run.plan(rows)
    with pytest.raises(TruncateError, match="onTruncate=emit"):
        run.parts()
    run.restart()
    with pytest.raises(TruncateError, match="onTruncate=emit"):
        run.parts()
    run.restart(onTruncate="emit")
    run.finish()
    assert run.fold.counts["truncate"] == 1


@pytest.mark.parametrize("rows", [50, 150], ids=["in the middle of the backfill", "after the backfill"])
def test_an_emitted_truncate_stands_between_what_was_before_and_what_came_after(
    database: Database, start_stream: StartStream, rows: int
) -> None:
    table_of(database, 100, identity="FULL")
    run = start_stream(onTruncate="emit")
    run.judged_batch(rows)
    database.execute(f"UPDATE t SET v = 'before'; {TRUNCATE}; UPDATE t SET v = 'last' WHERE id < 20")
    run.plan(1000)
    emitted = run.read()
    (row,) = truncates(emitted)
    assert (row["id"], row["v"], row["_is_snapshot"]) == (None, None, False)
    sequences = {row["_change_type"]: row["_sequence"] for row in emitted if not row["_is_snapshot"]}
    assert sequences["update_postimage"] > sequences["truncate"]
    run.commit(emitted)
    run.finish()


def test_an_ignored_truncate_keeps_the_rows_downstream(database: Database, start_stream: StartStream) -> None:
    table_of(database, 100)
    run = start_stream(onTruncate="ignore")
    run.catch_up()
    database.execute("TRUNCATE t; INSERT INTO t VALUES (1000, 'after')")
    run.catch_up()
    assert run.fold.counts == {"insert": 101}


def test_a_truncate_of_several_tables_and_one_that_is_rolled_back(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 20)
    database.execute("CREATE TABLE other (id bigint PRIMARY KEY REFERENCES t)")
    run = start_stream(onTruncate="emit")
    run.catch_up()
    database.execute("BEGIN; TRUNCATE t CASCADE; ROLLBACK; UPDATE t SET v = 'new' WHERE id = 1")
    run.catch_up()
    assert "truncate" not in run.fold.counts
    database.execute("TRUNCATE t CASCADE; INSERT INTO t VALUES (1, 'after')")
    run.finish()
    assert run.fold.counts["truncate"] == 1


def test_rows_of_a_chunk_that_was_read_again_after_a_truncate_outlive_it(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 100)
    run = start_stream(onTruncate="emit", vnodeCount="3")
    run.batch(20)
    run.plan(40)
    run.restart()
    # Transactions of more changes than a batch may take, so that each is the last one of its batch.
    database.execute("UPDATE t SET v = 'before'; TRUNCATE t")
    database.execute("INSERT INTO t SELECT i, 'a' FROM generate_series(1, 90) i")
    database.execute("UPDATE t SET v = 'b'; TRUNCATE t")
    database.execute("INSERT INTO t SELECT i, 'c' FROM generate_series(1, 80) i; DELETE FROM t WHERE id = 7")
    run.commit(run.read())
    database.execute("UPDATE t SET v = 'd' WHERE id % 3 = 0; DELETE FROM t WHERE id % 5 = 0")
    while run.batch(10):
        pass
    assert run.fold.counts["truncate"] == 2
    run.finish()


@pytest.mark.parametrize(
    "beside",
    ["CREATE TABLE other (id int); INSERT INTO other VALUES (1)", "SELECT pg_switch_wal(); CHECKPOINT"],
    ids=["another table", "no commit"],
)
def test_the_last_chunk_is_read_again_after_a_truncate_and_after_what_is_not_of_the_table(
    database: Database, start_stream: StartStream, beside: str
) -> None:
    """The state that it is read at lies behind the table's last commit, and the batch after it comes as far."""
    table_of(database, 100)
    run = start_stream(onTruncate="emit")
    run.plan(1000)
    run.stop()
    database.execute(TRUNCATE)
    database.execute(beside)
    run.commit(run.read())
    run.finish()


@contextmanager
def truncating(database: Database) -> Iterator[None]:
    """Somebody truncates the table and writes to it, and commits when the body has come to wait for it."""
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
    """In the state that was to be taken it looks empty by then."""
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
    """Else readers would wait for it in the server's queue, it for the batch, and the batch for its readers."""
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
    """As whoever looks after partitions by day has it once an hour."""
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
    with pytest.raises(SnapshotGoneError, match="attached, detached or dropped with rows in it"):
        run.read_part(part)
