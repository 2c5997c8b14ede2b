"""Columns that are added to a table whose last rows are kept."""

from __future__ import annotations

import pytest

from backfill.__main__ import main
from backfill.errors import SchemaChangedError, StateError
from integration.database import Database
from integration.definition import WHEN, refused, started
from integration.fixtures.streams import StartStream
from integration.stream_harness import table_of


def test_changes_from_before_a_column_was_altered_take_a_new_stream_where_last_rows_are_kept(
    database: Database, start_stream: StartStream
) -> None:
    """The column cannot be left out until the stream is past them: it is stored."""
    table_of(database, 100)
    run = start_stream(changelog="full")
    run.catch_up()
    run.stop()
    database.execute("UPDATE t SET v = 'before' WHERE id = 1; ALTER TABLE t ALTER v TYPE varchar(40)")
    refused(run, SchemaChangedError, "column 'v' has the type.*also if changelog=full .* start over")
    run.restart(columns="id")
    refused(run, StateError, "stored v string, given id int64.*start over with")
    new = run.new_checkpoint()
    new.restart(columns="", onExistingState="restart")
    new.finish()


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
    refused(run, StateError, "has other columns.*new ones after them")
    run.restart(columns="id,v,extra")
    run.catch_up()
    database.execute("UPDATE t SET extra = NULL")
    run.catch_up()
    assert {row.get("extra") for row in run.fold.rows.values()} == {None}


@pytest.mark.parametrize("when", ["in the log", "in the backfill", "taken again"])
def test_a_batch_staged_without_a_column_is_passed_without_it_where_last_rows_are_kept(
    database: Database, start_stream: StartStream, when: str
) -> None:
    """The error says how to pass it, so by then nothing may have been kept that has the column."""
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
    refused(run, SchemaChangedError, "staged without column w. Name the columns that the query had then")
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
    refused(run, StateError, "none but the key was stored, start over")
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
    refused(run, SchemaChangedError, "values of columns 2, 3 .by their numbers.*was dropped, added again or renamed")
    new = run.new_checkpoint()
    new.restart(onExistingState="restart")
    new.finish()


def test_a_column_is_noted_as_kept_though_it_came_with_a_batch_that_was_run_again(
    database: Database, start_stream: StartStream
) -> None:
    """Else it could be replaced unnoticed while the query is stopped: the offset of that batch does not have it."""
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
    refused(run, SchemaChangedError, "values of columns 2, 3 .by their numbers.*was dropped, added again or renamed")


def test_a_large_value_of_an_added_column_that_a_change_leaves_out_is_looked_up(
    database: Database, start_stream: StartStream
) -> None:
    """Adding the column rewrote all rows, which the log does not tell; so the value is not known without a look."""
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
