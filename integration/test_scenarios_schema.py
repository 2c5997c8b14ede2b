"""The table's definition changes between chunks, between the snapshot and the log, and while the log is followed."""

from __future__ import annotations

import pytest

from backfill.errors import DefiniteError, OptionsError, SchemaChangedError, TableError
from integration.database import Database
from integration.definition import WHEN, refused, started
from integration.fixtures.streams import StartStream
from integration.servers import Server
from integration.stream_harness import table_of

CHANGES = {
    "dropped": ("DROP COLUMN v", "v"),
    "renamed": ("RENAME COLUMN v TO w", "v"),
    "given another type and written anew": ("ALTER COLUMN v TYPE int USING length(v)", "v"),
    "given another type by name only": ("ALTER COLUMN v TYPE varchar", "v"),
    "a key that is given another type": ("ALTER COLUMN id TYPE numeric", "id"),
    "a key that is given a narrower type": ("ALTER COLUMN id TYPE int", "id"),
}


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("change", CHANGES)
def test_a_column_that_is_lost_ends_a_running_stream_by_name(
    database: Database, start_stream: StartStream, when: str, change: str
) -> None:
    statement, column = CHANGES[change]
    table_of(database, 100)
    run = started(start_stream, when)
    database.execute(f"ALTER TABLE t {statement}; INSERT INTO t (id) VALUES (1000); DELETE FROM t WHERE id = 1")
    refused(run, SchemaChangedError, rf"column '?{column}\b")


@pytest.mark.parametrize("change", ["DROP COLUMN v", "RENAME v TO w"])
def test_a_column_that_is_lost_before_the_first_batch_is_not_reported_as_unpublished(
    database: Database, start_stream: StartStream, change: str
) -> None:
    table_of(database, 3)
    run = start_stream()
    assert run.stream().rows.table.columns.names == ["id", "v"]
    database.execute(f"ALTER TABLE t {change}")
    with pytest.raises(SchemaChangedError, match=r"column v (of .* )?was dropped.*\. Start the query again"):
        run.batch()
    run.restart()
    run.finish()


@pytest.mark.parametrize("change", ["DROP COLUMN v", "RENAME v TO w"])
def test_a_column_that_is_lost_is_not_reported_as_missing_from_the_publication(
    database: Database, start_stream: StartStream, change: str
) -> None:
    """No row has changed since, so the log says nothing of it. Started again, the stream goes on, as the error says."""
    table_of(database, 100)
    run = started(start_stream, "in the log")
    database.execute(f"ALTER TABLE t {change}")
    refused(run, SchemaChangedError, r"column v of .* was dropped, renamed or .* Start the query again")
    run.restart()
    database.execute("UPDATE t SET id = id + 1000")  # so that every row comes with the columns of now
    run.finish()


def test_a_lost_column_that_is_not_carried_is_not_missed(database: Database, start_stream: StartStream) -> None:
    table_of(database, 100)
    database.execute("ALTER TABLE t ADD COLUMN extra int, ADD COLUMN other int DEFAULT 3")
    run = started(start_stream, "between chunks", columns="v,id")
    run.select = "v, id"
    database.execute("ALTER TABLE t DROP COLUMN extra; UPDATE t SET v = 'new'; ALTER TABLE t ALTER other TYPE text")
    run.backfill(60)
    run.finish()


def test_values_that_a_wider_column_may_hold_are_refused_where_they_do_not_fit(
    database: Database, start_stream: StartStream
) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n numeric(6,2)); INSERT INTO t VALUES (1, 1.25), (2, 9999.99)"
    )
    run = start_stream()
    run.catch_up()
    database.execute("ALTER TABLE t ALTER n TYPE numeric(12,4); INSERT INTO t VALUES (3, 1.2345)")
    refused(run, DefiniteError, "'n'")


def test_a_definition_that_changes_inside_a_transaction_is_noticed(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 100)
    run = started(start_stream, "in the log")
    database.execute(
        "BEGIN; UPDATE t SET v = 'a' WHERE id = 1; ALTER TABLE t ADD COLUMN extra int; UPDATE t SET v = 'b', extra = 2;"
        "COMMIT"
    )
    run.catch_up()
    assert {row["v"] for row in run.fold.rows.values()} == {"b"}
    database.execute("BEGIN; UPDATE t SET v = 'c'; ALTER TABLE t DROP COLUMN v; INSERT INTO t VALUES (0); COMMIT")
    refused(run, SchemaChangedError, "column 'v' is missing")


def test_a_stored_generated_column_is_carried_where_the_server_logs_it(
    database: Database, start_stream: StartStream, postgres: Server
) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a int, twice int GENERATED ALWAYS AS (a * 2) STORED);"
        "INSERT INTO t SELECT i, i FROM generate_series(1, 50) i"
    )
    run = start_stream()
    if postgres.version < 180_000:
        with pytest.raises(TableError, match="twice"):
            run.batch()
        return
    run.batch(20)
    database.execute("UPDATE t SET a = a + 1")
    run.finish()


def test_a_generated_column_that_the_log_lacks_is_read_where_nothing_is_read_of_the_log(
    database: Database, start_stream: StartStream, postgres: Server
) -> None:
    kind = "STORED" if postgres.version < 180_000 else "VIRTUAL"
    database.execute(
        f"CREATE TABLE t (id int PRIMARY KEY, a int, twice int GENERATED ALWAYS AS (a * 2) {kind});"
        "INSERT INTO t SELECT i, i FROM generate_series(1, 50) i"
    )
    with pytest.raises(TableError, match=f"cannot be streamed whole: .* the {kind.lower()} generated column 'twice'"):
        start_stream().batch()
    run = start_stream(startupMode="snapshot")
    run.batch()
    run.require_equal()
    assert run.fold.counts == {"insert": 50}


def test_an_option_that_names_a_lost_column_is_refused(database: Database, start_stream: StartStream) -> None:
    table_of(database, 10)
    run = start_stream(columns="id,v")
    run.batch(5)
    database.execute("ALTER TABLE t DROP COLUMN v")
    run.restart()
    with pytest.raises(OptionsError, match="no column 'v'"):
        run.batch()
