"""Large values that the change log leaves out because an update did not touch them."""

from __future__ import annotations

import pytest

from backfill.errors import UnchangedToastError
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.fold import Row
from integration.large_values import change, documents
from integration.stream_harness import StreamRun


def updates(run: StreamRun) -> list[Row]:
    run.plan()
    rows = run.read()
    return [row for row in rows if row["_change_type"] == "update_postimage"]


@pytest.mark.parametrize("rows", [3, 100], ids=["in the middle of the backfill", "after it"])
def test_identity_full_fills_in_what_an_update_left_alone(
    database: Database, start_stream: StartStream, rows: int
) -> None:
    documents(database, identity="FULL")
    run = start_stream(vnodeCount="3", numPartitions="1")
    for _ in range(8):
        run.judged_batch(rows)
        change(database)
    run.backfill(rows)
    run.finish()


def test_an_update_that_leaves_a_large_value_alone_ends_the_stream_before_it_is_emitted(
    database: Database, start_stream: StartStream
) -> None:
    documents(database, identity="DEFAULT")
    run = start_stream()
    run.batch()
    database.execute("UPDATE t SET title = 'new title' WHERE id = 2")
    run.plan()
    with pytest.raises(UnchangedToastError, match=r"column body, extra .*REPLICA IDENTITY FULL.*onUnchangedToast=mark"):
        run.read()
    run.restart(columns="title", onUnchangedToast="fail")
    assert [row["title"] for row in run.read()] == ["new title"]


def test_partitions_that_log_whole_rows_fill_in_what_an_update_left_alone(
    database: Database, start_stream: StartStream
) -> None:
    """Setting it on the root alone changes nothing, as the error says."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, title text, body text) PARTITION BY RANGE (id);"
        "ALTER TABLE t ALTER body SET STORAGE EXTERNAL; CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (9);"
        "INSERT INTO t VALUES (1, '', repeat('x', 5000)); ALTER TABLE t REPLICA IDENTITY FULL"
    )
    run = start_stream()
    run.batch()
    database.execute("UPDATE t SET title = 'new title'")
    run.plan()
    with pytest.raises(UnchangedToastError, match=r"if the key is the primary key.*on each of its partitions"):
        run.read()
    run.restart(onUnchangedToast="mark")
    run.batch()
    run.restart(onUnchangedToast="fail")
    run.fold.rows[(1,)]["body"] = "x" * 5000
    database.execute("ALTER TABLE t_1 REPLICA IDENTITY FULL; UPDATE t SET title = 'newer title'")
    run.finish()


def test_an_update_of_a_row_that_is_still_to_be_read_needs_no_large_value(
    database: Database, start_stream: StartStream
) -> None:
    documents(database, identity="DEFAULT")
    run = start_stream(vnodeCount="1", numPartitions="1")
    run.judged_batch(4)
    database.execute("UPDATE t SET title = 'new title' WHERE id > 4")
    run.backfill(4)
    run.finish()


def test_a_value_that_was_left_alone_is_marked_and_distinguished_from_null(
    database: Database, start_stream: StartStream
) -> None:
    documents(database, identity="DEFAULT")
    run = start_stream(onUnchangedToast="mark")
    run.batch()
    database.execute(
        "UPDATE t SET title = 'a' WHERE id = 1; UPDATE t SET title = 'b' WHERE id = 2;"
        "UPDATE t SET body = NULL WHERE id = 4; UPDATE t SET body = 'small', extra = 'small' WHERE id = 6"
    )
    found = {row["id"]: row for row in updates(run)}
    assert {key: row["_unchanged_columns"] for key, row in found.items()} == {
        1: ["body"],
        2: ["body", "extra"],
        4: ["extra"],
        6: None,
    }
    assert (found[1]["body"], found[1]["extra"]) == (None, None)
    assert found[4]["body"] is None
    assert (found[6]["body"], found[6]["extra"]) == ("small", "small")


def test_what_is_marked_is_all_that_a_consumer_lacks(database: Database, start_stream: StartStream) -> None:
    """A consumer that keeps the value it has wherever it is told to ends up with the table."""
    documents(database, identity="DEFAULT")
    run = start_stream(onUnchangedToast="mark", vnodeCount="3", numPartitions="1")
    sink: dict[int, Row] = {}
    for number in range(30):
        if number in (1, 3, 5):
            database.execute("UPDATE t SET title = title || '!'; UPDATE t SET extra = NULL WHERE id = 4")
            database.execute("DELETE FROM t WHERE id = 8; UPDATE t SET body = 'x' WHERE id % 5 = 0")
        if not run.plan(3):
            break
        rows = run.read()
        run.committed += 1
        for row in sorted(rows, key=lambda row: row["_sequence"]):
            before = sink.pop(row["id"], {})
            if row["_change_type"] != "delete":
                kept = {name: before[name] for name in row["_unchanged_columns"] or ()}
                sink[row["id"]] = {name: row[name] for name in ("id", "title", "body", "extra")} | kept
    with database.connect() as connection:
        expected = run.table(connection)
    assert sink == {key: row for (key,), row in expected.items()}
