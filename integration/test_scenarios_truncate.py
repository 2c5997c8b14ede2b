"""TRUNCATE at every moment."""

from __future__ import annotations

import pytest

from backfill.errors import TruncateError
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.fold import Row
from integration.stream_harness import table_of
from integration.taking import TRUNCATE


def truncates(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["_change_type"] == "truncate"]


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
    """The chunk is read at a state after the table's last commit, and the batch after it comes as far."""
    table_of(database, 100)
    run = start_stream(onTruncate="emit")
    run.plan(1000)
    run.stop()
    database.execute(TRUNCATE)
    database.execute(beside)
    run.commit(run.read())
    run.finish()
