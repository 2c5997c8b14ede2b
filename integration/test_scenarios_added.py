"""Columns that are added to the table, and changes and rows from before."""

from __future__ import annotations

import logging

import pytest

from backfill.errors import SchemaChangedError
from integration.database import Database
from integration.definition import WHEN, refused, started
from integration.fixtures.streams import StartStream
from integration.stream_harness import table_of
from integration.waiting import logged


@pytest.mark.parametrize("when", WHEN)
def test_an_added_column_does_not_disturb_a_running_stream(
    database: Database, start_stream: StartStream, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    table_of(database, 100)
    run = started(start_stream, when)
    run.select = "id, v"
    with caplog.at_level(logging.WARNING, "backfill"):
        for name in ("extra", "more"):
            database.execute(f"ALTER TABLE t ADD COLUMN {name} int DEFAULT 7")
            database.execute(f"UPDATE t SET v = v || '!', {name} = 8; INSERT INTO t VALUES ({len(name) * 1000}, 'new')")
            run.judged_batch(30)
        run.backfill(300)
        run.finish()
    warning = [record.getMessage() for record in caplog.records if "was added" in record.getMessage()]
    assert [message.split()[1] for message in warning] == ["extra", "more"]
    assert all("or backfill re-backfill reads them again" in message for message in warning)


@pytest.mark.parametrize("when", WHEN)
def test_an_added_column_is_carried_after_a_restart(database: Database, start_stream: StartStream, when: str) -> None:
    table_of(database, 100)
    run = started(start_stream, when)
    run.catch_up()
    database.execute("ALTER TABLE t ADD COLUMN extra int; UPDATE t SET extra = 8")
    run.restart()
    run.finish()


def test_an_added_column_that_is_carried_is_reported_as_missing_from_rows_that_came_before(
    database: Database, start_stream: StartStream, caplog: pytest.LogCaptureFixture
) -> None:
    table_of(database, 100)
    run = started(start_stream, "in the log")
    database.execute("ALTER TABLE t ADD COLUMN extra int DEFAULT 7")
    with caplog.at_level(logging.WARNING, "backfill"):
        run.restart()
        run.catch_up()
        (warning,) = logged(caplog)
        run.restart(columns="id,v")
        run.catch_up()
    assert logged(caplog) == [warning]
    assert "column extra was added" in warning
    assert "until they change, or backfill re-backfill reads them again" in warning


def test_a_column_that_the_stream_leaves_out_is_not_reported_as_added(
    database: Database, start_stream: StartStream, caplog: pytest.LogCaptureFixture
) -> None:
    """The changes have it, because the publication is somebody else's and has all columns."""
    table_of(database, 20)
    database.execute("ALTER TABLE t ADD COLUMN more int; CREATE PUBLICATION feed FOR TABLE t")
    run = start_stream(publicationName="feed", columns="id,v", select="id, v")
    with caplog.at_level(logging.WARNING, "backfill"):
        run.catch_up()
        database.execute("UPDATE t SET v = 'new', more = 1")
        run.finish()
    assert "was added" not in caplog.text


@pytest.mark.parametrize("planned", [False, True])
def test_changes_from_before_a_column_was_added_are_read_without_it(
    database: Database, start_stream: StartStream, *, planned: bool
) -> None:
    """Those changes do not say what is in the column."""
    table_of(database, 100)
    run = start_stream()
    run.catch_up()
    database.execute("UPDATE t SET v = 'before' WHERE id = 1; DELETE FROM t WHERE id = 2")
    if planned:
        run.plan()
    run.stop()
    database.execute(
        "ALTER TABLE t ADD COLUMN extra int DEFAULT 7; UPDATE t SET extra = 8 WHERE id = 3;"
        "BEGIN; UPDATE t SET v = 'in' WHERE id = 4; ALTER TABLE t ADD COLUMN more text; UPDATE t SET more = 'm'; COMMIT"
    )
    run.restart()
    run.catch_up()
    assert [run.fold.rows[(key,)]["extra"] for key in (1, 3, 4)] == [7, 8, 7]
    assert {row["more"] for row in run.fold.rows.values()} == {"m"}
    database.execute("ALTER TABLE t DROP COLUMN extra; UPDATE t SET v = 'after' WHERE id = 5")
    refused(run, SchemaChangedError, "column extra of .* was dropped, renamed")


def test_the_changes_alone_of_before_a_column_was_added_have_null_there(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 3)
    run = start_stream()
    run.catch_up()
    run.stop()
    database.execute("UPDATE t SET v = 'before' WHERE id = 1; ALTER TABLE t ADD COLUMN extra int DEFAULT 7")
    run.restart()
    run.catch_up()
    assert run.fold.rows[(1,)] == {"id": 1, "v": "before", "extra": None}


def test_a_column_that_was_added_and_renamed_is_not_taken_for_one_that_was_not_there(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 100)
    run = start_stream()
    run.catch_up()
    run.stop()
    database.execute(
        "ALTER TABLE t ADD COLUMN extra int DEFAULT 7; UPDATE t SET extra = 8 WHERE id = 1;"
        "ALTER TABLE t RENAME extra TO other"
    )
    refused(run, SchemaChangedError, r"column 'other' is missing.*option columns")
    run.restart(columns="id,v")
    run.select = "id, v"
    run.finish()


@pytest.mark.parametrize("changelog", ["logged", "full"])
@pytest.mark.parametrize("when", ["planned", "read"])
def test_a_batch_from_before_a_column_was_added_is_run_again_without_it(
    database: Database, start_stream: StartStream, when: str, changelog: str
) -> None:
    table_of(database, 100)
    run = start_stream(vnodeCount="4", numPartitions="2", changelog=changelog)
    run.batch(30)
    database.execute("UPDATE t SET v = 'before' WHERE id <= 10")
    run.plan(30)
    if when == "read":
        run.read()
    database.execute("ALTER TABLE t ADD COLUMN extra int DEFAULT 7")
    run.restart()
    run.catch_up(30)
    database.execute("UPDATE t SET extra = 8")
    run.finish()
