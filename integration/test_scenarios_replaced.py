"""Columns that are other ones under the same name."""

from __future__ import annotations

import pytest

from backfill.errors import SchemaChangedError
from integration.database import Database
from integration.definition import REPLACED, refused, started
from integration.fixtures.streams import StartStream
from integration.stream_harness import table_of


@pytest.mark.parametrize("when", ["between chunks", "in the log"])
@pytest.mark.parametrize("change", REPLACED)
def test_a_column_that_has_taken_the_name_of_one_that_is_carried_ends_a_running_stream(
    database: Database, start_stream: StartStream, when: str, change: str
) -> None:
    """In the change log it looks the same, and what happened to the rows is not there."""
    table_of(database, 100)
    database.execute("ALTER TABLE t ADD COLUMN w text DEFAULT 'w'")
    run = started(start_stream, when)
    database.execute(REPLACED[change])
    refused(run, SchemaChangedError, "column v.*dropped and added again")


@pytest.mark.parametrize("mode", ["initial", "snapshot"])
@pytest.mark.parametrize("change", REPLACED)
def test_a_chunk_is_not_read_from_a_column_that_has_taken_the_name_of_another(
    database: Database, start_stream: StartStream, change: str, mode: str
) -> None:
    """Statements name columns as they are now, also in a state from before."""
    table_of(database, 100)
    database.execute("ALTER TABLE t ADD COLUMN w text DEFAULT 'w'")
    run = start_stream(startupMode=mode)
    run.plan()
    (part,) = run.parts()
    database.execute(REPLACED[change])
    with pytest.raises(SchemaChangedError, match=r"column v.* of .*dropped and added again"):
        run.read_part(part)
    if mode == "snapshot":  # of which nothing has been passed on
        run.restart()
        run.batch()
        run.require_equal()


def test_a_row_is_not_looked_up_in_a_column_that_has_taken_the_name_of_another(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 10)
    database.execute("ALTER TABLE t ADD COLUMN w text DEFAULT 'w'")
    run = start_stream()
    run.catch_up()
    database.execute(REPLACED["exchanged with another"])
    pin = run.upstream.repin(run.barrier().epoch)
    with pytest.raises(SchemaChangedError, match=r"column v, w of .*dropped and added again"):
        list(run.upstream.lookup(pin, run.upstream.typed([("5",)])))


def test_a_column_with_quotes_in_its_name_is_watched_too(database: Database, start_stream: StartStream) -> None:
    database.execute("""CREATE TABLE t (id int PRIMARY KEY, "a""\" text, b text)""")
    database.execute("INSERT INTO t SELECT i, i % 2, 1 - i % 2 FROM generate_series(1, 100) i; ANALYZE t")
    run = start_stream(columns="id", snapshotFilter=""""a""\" = '0'""", vnodeCount="2", numPartitions="1")
    run.batch(10)
    database.execute("""ALTER TABLE t RENAME "a""\" TO c""")
    database.execute("""ALTER TABLE t RENAME b TO "a""\" """)
    with pytest.raises(SchemaChangedError, match="column a"):
        run.batch(10)


@pytest.mark.parametrize("changelog", ["logged", "full"])
def test_changes_of_when_another_column_had_the_name_are_not_taken_for_its_own(
    database: Database, start_stream: StartStream, changelog: str
) -> None:
    """By the time the stream looks, the names are as they were."""
    table_of(database, 100)
    database.execute("ALTER TABLE t ADD COLUMN w text DEFAULT 'w'")
    run = started(start_stream, "in the log", changelog=changelog)
    exchange = REPLACED["exchanged with another"]
    database.execute(f"{exchange}; UPDATE t SET v = 'new' WHERE id = 5; {exchange}")
    message = "column 'w' was another one, which had that name; column 'v' was another one"
    refused(run, SchemaChangedError, message)
    run.restart()
    refused(run, SchemaChangedError, message)
    if changelog == "logged":
        run.restart(columns="id")
        run.catch_up()


def test_changes_of_when_an_added_column_had_the_name_are_not_taken_for_its_own(
    database: Database, start_stream: StartStream
) -> None:
    """A migration that was taken back."""
    table_of(database, 100)
    run = started(start_stream, "in the log")
    database.execute("ALTER TABLE t ADD n text; ALTER TABLE t RENAME v TO o; ALTER TABLE t RENAME n TO v")
    database.execute("UPDATE t SET v = 'new' WHERE id = 5; ALTER TABLE t DROP v; ALTER TABLE t RENAME o TO v")
    refused(run, SchemaChangedError, "column 'v' was another one, which had that name")


def test_changes_from_before_a_column_was_dropped_and_added_again_are_read_without_it(
    database: Database, start_stream: StartStream
) -> None:
    """It stood before the key then, and is the only one that is not what it was."""
    database.execute("CREATE TABLE t (v text, id int PRIMARY KEY, b int)")
    database.execute("INSERT INTO t SELECT 'v', i, i FROM generate_series(1, 50) i")
    run = started(start_stream, "in the log")
    run.stop()
    database.execute("UPDATE t SET v = 'before', b = -b WHERE id = 5; ALTER TABLE t DROP v; ALTER TABLE t ADD v text")
    run.restart()
    refused(run, SchemaChangedError, r"reads: column 'v' was another one, which had that name\. Start")
    run.restart(columns="id,b")
    run.catch_up()
    assert run.fold.rows[(5,)] == {"id": 5, "b": -5}


def test_where_columns_were_dropped_all_others_are_still_the_same(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 100)
    database.execute("ALTER TABLE t ADD a text, ADD b text, ADD w text DEFAULT 'w', ADD c text")
    run = started(start_stream, "in the log", columns="id,v,w", select="id, v, w")
    database.execute("UPDATE t SET w = 'x' WHERE id < 20; ALTER TABLE t DROP a, DROP c; ALTER TABLE t RENAME b TO d")
    database.execute("UPDATE t SET w = 'y' WHERE id > 40; ALTER TABLE t ADD e text; UPDATE t SET w = 'z' WHERE id = 3")
    run.restart()
    run.finish()
