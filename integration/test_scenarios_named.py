"""The table gets another name, another table its own, or children; or it is made again."""

from __future__ import annotations

import pytest

from backfill.errors import DefiniteError, StateError, TableError
from integration.database import Database
from integration.definition import WHEN, refused, started
from integration.fixtures.streams import StartStream
from integration.scenarios import BACKFILLED, ended
from integration.stream_harness import table_of


@BACKFILLED
def test_a_table_that_takes_the_name_of_another_is_not_followed(
    database: Database, start_stream: StartStream, rows: int
) -> None:
    table_of(database, 100)
    run = start_stream()
    run.batch(rows)
    database.execute(
        "CREATE TABLE new (LIKE t INCLUDING ALL); ALTER TABLE t RENAME TO old; ALTER TABLE new RENAME TO t;"
        "INSERT INTO t VALUES (1000, 'of another table')"
    )
    ended(run, TableError, 'is no longer the table that the stream began with, which is "public"."old" now')
    run.restart()
    with pytest.raises(StateError, match="by its new name"):
        run.batch()
    run.restart(dbtable="old")
    run.finish()


def test_a_stream_goes_on_under_the_new_name_of_its_table(database: Database, start_stream: StartStream) -> None:
    table_of(database, 100)
    run = start_stream()
    run.backfill()
    run.catch_up()
    database.execute('CREATE SCHEMA "S"; ALTER TABLE t SET SCHEMA "S"; ALTER TABLE "S".t RENAME TO "T"')
    database.execute('DELETE FROM "S"."T" WHERE id < 5')
    ended(run, TableError, 'Set the option dbtable to "S"."T"')
    run.restart(dbtable='"S"."T"')
    run.finish()


@BACKFILLED
def test_a_table_that_others_inherit_from_by_now_is_followed_alone_and_refused_after_a_restart(
    database: Database, start_stream: StartStream, rows: int
) -> None:
    """Started anew, the stream could not tell whether whoever reads it expects the children's rows too."""
    table_of(database, 100)
    run = start_stream()
    run.batch(rows)
    database.execute(
        "CREATE TABLE child () INHERITS (t); INSERT INTO child VALUES (1, 'of the child'), (500, 'of the child');"
        "UPDATE t SET v = 'of both' WHERE id IN (1, 2, 99)"
    )
    run.catch_up(20)
    assert len(run.fold.rows) == 100
    run.restart()
    ended(run, TableError, 'ALTER TABLE … NO INHERIT "public"."t" for each')
    database.execute("ALTER TABLE child NO INHERIT t")
    run.restart()
    run.finish()


def test_a_table_that_was_renamed_is_not_followed_under_its_old_name(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 100)
    run = started(start_stream, "between chunks")
    database.execute("ALTER TABLE t RENAME TO t_old")
    refused(run, TableError, "renamed.*new name")
    table_of(database, 5)
    refused(run, TableError, "t_old")


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
def test_a_table_that_was_dropped_and_made_again_is_another_table(
    database: Database, start_stream: StartStream, when: str, *, restarts: bool
) -> None:
    table_of(database, 100)
    run = started(start_stream, when)
    database.execute("DROP TABLE t")
    table_of(database, 100)
    if restarts:
        run.restart()
        refused(run, StateError, "dropped and made again")
    else:
        refused(run, DefiniteError, "the table that the stream began with")
