"""Columns that are added to the table, and last rows, staged chunks and changes from before."""

from __future__ import annotations

import logging

import pytest

from backfill.__main__ import main
from backfill.errors import SchemaChangedError, StateError
from integration.database import Database
from integration.definition import WHEN, refused, started
from integration.fixtures.streams import StartStream
from integration.stream_harness import table_of


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
    told = [record.getMessage() for record in caplog.records if "was added" in record.getMessage()]
    assert [message.split()[1] for message in told] == ["extra", "more"]
    assert all("or backfill re-backfill reads them again" in message for message in told)


@pytest.mark.parametrize("when", WHEN)
def test_an_added_column_is_carried_after_a_restart(database: Database, start_stream: StartStream, when: str) -> None:
    table_of(database, 100)
    run = started(start_stream, when)
    run.catch_up()
    database.execute("ALTER TABLE t ADD COLUMN extra int; UPDATE t SET extra = 8")
    run.restart()
    run.finish()


def test_an_added_column_that_is_carried_is_said_to_be_missing_from_rows_that_came_before(
    database: Database, start_stream: StartStream, caplog: pytest.LogCaptureFixture
) -> None:
    table_of(database, 100)
    run = started(start_stream, "in the log")
    database.execute("ALTER TABLE t ADD COLUMN extra int DEFAULT 7")
    with caplog.at_level(logging.WARNING, "backfill"):
        run.restart()
        run.catch_up()
        (said,) = caplog.messages
        run.restart(columns="id,v")
        run.catch_up()
    assert caplog.messages == [said]
    assert "column extra was added" in said
    assert "until they change, or backfill re-backfill reads them again" in said


@pytest.mark.parametrize("planned", [False, True])
def test_changes_from_before_a_column_was_added_are_read_without_it(
    database: Database, start_stream: StartStream, *, planned: bool
) -> None:
    """They do not say what is in the column."""
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


def test_changes_from_before_a_column_was_altered_take_a_new_stream_where_last_rows_are_kept(
    database: Database, start_stream: StartStream
) -> None:
    """The column cannot be left out until the stream is past them: it is stored."""
    table_of(database, 100)
    run = start_stream(changelog="full")
    run.catch_up()
    run.stop()
    database.execute("UPDATE t SET v = 'before' WHERE id = 1; ALTER TABLE t ALTER v TYPE varchar(40)")
    refused(run, SchemaChangedError, "column 'v' has the type.*start over .* as for one whose values changelog=full")
    run.restart(columns="id")
    refused(run, StateError, "stored v string, given id int64.*start over with")
    new = run.new_checkpoint()
    new.restart(columns="", onExistingState="restart")
    new.finish()


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


@pytest.mark.parametrize("change", ["RENAME v TO w", "DROP COLUMN v, ADD COLUMN w text DEFAULT 'w'"])
def test_a_staged_chunk_of_a_column_that_has_another_name_now_is_refused(
    database: Database, start_stream: StartStream, change: str
) -> None:
    """It has the value, or had one that may be it."""
    table_of(database, 100)
    run = start_stream(vnodeCount="1")
    run.batch(30)
    run.plan(30)
    run.read()
    database.execute(f"ALTER TABLE t {change}")
    run.restart()
    refused(run, SchemaChangedError, "staged without column w")


def test_a_staged_chunk_without_a_column_that_was_there_is_refused(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 100)
    database.execute("ALTER TABLE t ADD COLUMN w text DEFAULT 'w'")
    run = start_stream(vnodeCount="1", columns="id,v")
    run.select = "id, v"
    run.batch(30)
    run.plan(30)
    run.read()
    run.restart(columns="id,v,w")
    refused(run, SchemaChangedError, "staged without column w.*option columns")
    run.restart(columns="id,v")
    run.backfill(30)
    run.finish()


def test_a_snapshot_is_not_read_in_part_without_a_column_that_was_added(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 100)
    run = start_stream(startupMode="snapshot")
    run.plan()
    run.read()
    database.execute("ALTER TABLE t ADD COLUMN extra int DEFAULT 7")
    run.restart()
    refused(run, SchemaChangedError, "extra.*option columns")
    run.restart(columns="id,v")
    run.select = "id, v"
    run.finish()


@pytest.mark.parametrize("options", [{"changelog": "full"}, {"envelope": "upsert"}])
@pytest.mark.parametrize("when", WHEN)
def test_an_added_column_is_carried_after_a_restart_where_last_rows_are_kept(
    database: Database, start_stream: StartStream, when: str, options: dict[str, str]
) -> None:
    table_of(database, 100)
    run = started(start_stream, when, **options)
    database.execute("UPDATE t SET v = 'before' WHERE id = 5; DELETE FROM t WHERE id = 6")
    run.stop()
    database.execute("ALTER TABLE t ADD COLUMN extra int DEFAULT 7; UPDATE t SET v = 'after', extra = 8 WHERE id < 9")
    run.restart()
    run.catch_up(30)
    database.execute(
        "UPDATE t SET v = v || '!'; UPDATE t SET id = id + 1000 WHERE id < 50; DELETE FROM t WHERE id = 60"
    )
    run.finish()


@pytest.mark.parametrize("options", [{"changelog": "full"}, {"envelope": "upsert"}])
def test_a_column_that_came_with_a_batch_which_was_run_again_is_kept_from_then_on(
    database: Database, start_stream: StartStream, options: dict[str, str]
) -> None:
    table_of(database, 100)
    run = start_stream(vnodeCount="1", **options)
    run.batch(30)
    run.plan(100)
    run.parts()
    run.stop()
    database.execute("ALTER TABLE t ADD COLUMN extra int DEFAULT 4")
    run.restart()
    run.batch(100)
    assert {row["extra"] for row in run.fold.rows.values() if "extra" in row} == {4}
    run.restart(columns="id,v")
    refused(run, StateError, "of other columns.*new after them")
    run.restart(columns="id,v,extra")
    run.catch_up()
    database.execute("UPDATE t SET extra = NULL")
    run.catch_up()
    assert {row.get("extra") for row in run.fold.rows.values()} == {None}


@pytest.mark.parametrize("when", ["in the log", "in the backfill", "taken again"])
def test_a_batch_staged_without_a_column_is_passed_without_it_where_last_rows_are_kept(
    database: Database, start_stream: StartStream, when: str
) -> None:
    """The error says how; so by then nothing may be kept that has the column."""
    table_of(database, 50)
    database.execute("ALTER TABLE t ADD COLUMN w int DEFAULT 3")
    run = start_stream(vnodeCount="1", changelog="full", columns="id,v")
    run.select = "id, v"
    run.batch(10)
    if when != "in the backfill":
        run.catch_up()
        database.execute("UPDATE t SET v = 'staged' WHERE id = 1")
    if when == "taken again":
        assert main(["re-backfill", "--state-dir", run.options["stateDir"]]) == 0
    assert run.plan(10)
    run.read()
    run.restart(columns="id,v,w")
    refused(run, SchemaChangedError, "staged without column w. Name the columns of that time with the option columns")
    run.restart(columns="id,v")
    run.catch_up()
    run.restart(columns="id,v,w")
    run.select = "*"
    database.execute("UPDATE t SET w = 4 WHERE id % 2 = 0; DELETE FROM t WHERE id % 5 = 0; UPDATE t SET id = -id")
    run.finish()


def test_a_table_of_its_key_alone_that_got_a_column_takes_a_new_stream_where_last_rows_are_kept(
    database: Database, start_stream: StartStream
) -> None:
    database.execute("CREATE TABLE t (id bigint PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 50)")
    run = start_stream(changelog="full")
    run.catch_up()
    run.stop()
    database.execute("ALTER TABLE t ADD COLUMN extra int; UPDATE t SET extra = 1")
    refused(run, StateError, "there was none beside the key, start over")
    run.restart(columns="id")
    run.select = "id"
    run.catch_up()
    run.finish()


@pytest.mark.parametrize("change", ["DROP COLUMN extra, ADD COLUMN extra text", "RENAME extra TO x"])
def test_last_rows_of_a_column_that_was_replaced_while_the_query_was_stopped_are_refused(
    database: Database, start_stream: StartStream, change: str
) -> None:
    """The log tells nothing of it, and leaves out large values that were stored before."""
    table_of(database, 20)
    run = start_stream(changelog="full")
    run.catch_up()
    database.execute("ALTER TABLE t ADD COLUMN extra text")
    run.restart()
    run.catch_up()
    database.execute("UPDATE t SET extra = 'before'")
    run.catch_up()
    run.stop()
    database.execute(f"ALTER TABLE t {change}; UPDATE t SET v = 'after'")
    if "RENAME" in change:
        database.execute("ALTER TABLE t RENAME v TO extra; ALTER TABLE t RENAME x TO v")
    run.restart(columns="id,v,extra")
    refused(run, SchemaChangedError, "values of other columns .by their numbers, 2, 3; now .*dropped and maybe added")
    new = run.new_checkpoint()
    new.restart(onExistingState="restart")
    new.finish()


def test_a_column_is_noted_as_kept_though_it_came_with_a_batch_that_was_run_again(
    database: Database, start_stream: StartStream
) -> None:
    """Else it could be replaced while the query is stopped: the offset of that batch was made before it was carried."""
    table_of(database, 20)
    run = start_stream(vnodeCount="1", changelog="full")
    run.catch_up()
    database.execute("ALTER TABLE t ADD COLUMN extra text; UPDATE t SET extra = 'before'")
    assert run.plan()
    run.stop()
    run.restart()
    run.catch_up()
    assert not run.plan()
    run.stop()
    database.execute("ALTER TABLE t DROP COLUMN extra; ALTER TABLE t ADD COLUMN extra text; UPDATE t SET v = 'after'")
    run.restart()
    refused(run, SchemaChangedError, "values of other columns .by their numbers, 2, 3; now .*dropped and maybe added")


def test_a_large_value_of_an_added_column_that_a_change_leaves_out_is_looked_up(
    database: Database, start_stream: StartStream
) -> None:
    """Adding it wrote all rows anew, of which the log tells nothing; so where it was stored before, it is not known."""
    table_of(database, 100)
    run = started(start_stream, "in the log", changelog="full")
    run.stop()
    large = "(SELECT string_agg(random()::text, '') FROM generate_series(1, 500))"
    database.execute(f"CREATE FUNCTION large() RETURNS text VOLATILE AS $$ SELECT {large} $$ LANGUAGE sql")
    database.execute("ALTER TABLE t ADD COLUMN extra text DEFAULT large(); UPDATE t SET v = 'after' WHERE id % 3 = 0")
    run.restart()
    run.catch_up()
    assert {key: row.get("extra") is None for (key,), row in run.fold.rows.items()} == {
        key: key % 3 > 0 for key in range(1, 101)
    }
    database.execute("UPDATE t SET id = id + 1000")
    run.finish()


@pytest.mark.parametrize(
    ("before", "now"), [("int", "bigint"), ("numeric(5, 2)", "numeric(9, 2)"), ("real", "double precision")]
)
def test_a_staged_chunk_of_a_column_that_was_widened_is_read_as_its_rows_are_now(
    database: Database, start_stream: StartStream, before: str, now: str
) -> None:
    database.execute(f"CREATE TABLE t (id int PRIMARY KEY, v {before})")
    database.execute("INSERT INTO t SELECT i, i / 8.0 FROM generate_series(1, 100) i; ANALYZE t")
    run = start_stream(vnodeCount="1")
    run.batch(40)
    run.plan(40)
    run.read()
    database.execute(f"ALTER TABLE t ALTER v TYPE {now}")
    run.restart()
    run.finish()
