"""Somebody drops or alters what publishes the table: no change that is left out goes unnoticed."""

from __future__ import annotations

import logging
import re

import pytest

from backfill.__main__ import main
from backfill.errors import DatabaseSetupError, DataLossError, DefiniteError, TableError
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.scenarios import AT_ANY_TIME, RESTARTS, following, refused, started
from integration.stream_harness import StreamRun, table_of
from integration.versions import require_version
from integration.waiting import logged

PUBLICATION = {
    "dropped": "DROP PUBLICATION {0}",
    "without the table": "ALTER PUBLICATION {0} DROP TABLE t",
    "without deletes": "ALTER PUBLICATION {0} SET (publish = 'insert, update')",
    "without some rows": "ALTER PUBLICATION {0} SET TABLE t WHERE (id > 5)",
    "without a column": "ALTER PUBLICATION {0} SET TABLE t (id)",
}
SINCE_15 = ("without some rows", "without a column")


@RESTARTS
@AT_ANY_TIME
@pytest.mark.parametrize("change", PUBLICATION)
def test_a_publication_that_leaves_something_out_ends_the_stream(
    database: Database, start_stream: StartStream, when: str, change: str, *, restarts: bool
) -> None:
    if change in SINCE_15:
        require_version(database, 150_000, "such a publication")
    run = started(start_stream, when)
    database.execute(PUBLICATION[change].format(run.slot))
    database.execute("DELETE FROM t WHERE id < 5")
    refused(run, DefiniteError, "(publication|'v' is missing).*onExistingState=restart", restarts=restarts)


def test_a_publication_that_has_its_name_back_does_not_bring_back_what_it_left_out(
    database: Database, start_stream: StartStream
) -> None:
    """A stream that is started then cannot tell: a rename changes nothing that it knows of the publication."""
    run = started(start_stream, "while the log is followed")
    database.execute(f"ALTER PUBLICATION {run.slot} RENAME TO another")
    refused(run, DataLossError, "once it has its name back, a stream may.*onExistingState=restart", restarts=True)


MADE_AGAIN = {
    "the publication": ("DROP PUBLICATION {0}", "CREATE PUBLICATION {0} FOR TABLE t"),
    "the publication, for all tables": ("DROP PUBLICATION {0}", "CREATE PUBLICATION {0} FOR ALL TABLES"),
    "the table's place in it": ("ALTER PUBLICATION {0} DROP TABLE t", "ALTER PUBLICATION {0} ADD TABLE t"),
}


@RESTARTS
@pytest.mark.parametrize("what", MADE_AGAIN)
def test_a_publication_that_left_out_changes_for_a_while_ends_the_stream(
    database: Database, start_stream: StartStream, what: str, *, restarts: bool
) -> None:
    run = started(start_stream, "while the log is followed")
    out, back = (statement.format(run.slot) for statement in MADE_AGAIN[what])
    for statement in (out, "UPDATE t SET v = 'lost' WHERE id = 1", back):
        database.execute(statement)
    warning = (
        "was altered, or dropped and made again|was dropped and made again|was taken out of publication .* and put back"
    )
    refused(run, DataLossError, warning, restarts=restarts)


@pytest.mark.parametrize("what", MADE_AGAIN)
def test_without_failing_on_data_loss_the_stream_goes_on_with_a_publication_that_was_made_again(
    database: Database, start_stream: StartStream, what: str
) -> None:
    run = started(start_stream, "while the log is followed", failOnDataLoss="false")
    run.stop()
    out, back = (statement.format(run.slot) for statement in MADE_AGAIN[what])
    for statement in (out, "UPDATE t SET v = 'lost' WHERE id = 1", back):
        database.execute(statement)
    run.catch_up()
    database.execute("UPDATE t SET v = 'not lost' WHERE id = 2")
    run.restart()
    run.catch_up()
    assert (run.fold.rows[(1,)]["v"], run.fold.rows[(2,)]["v"]) == ("read", "not lost")


@RESTARTS
@pytest.mark.parametrize("what", MADE_AGAIN)
def test_a_publication_of_somebody_else_that_was_made_again_ends_the_stream(
    database: Database, start_stream: StartStream, what: str, *, restarts: bool
) -> None:
    run = _with_a_publication_of_somebody_else(database, start_stream)
    _make_again(run, what, "p")
    refused(run, DataLossError, "publication p was dropped and made again since the stream began", restarts=restarts)


@RESTARTS
@pytest.mark.parametrize("what", MADE_AGAIN)
def test_a_publication_of_somebody_else_that_was_made_again_is_accepted_once(
    database: Database, start_stream: StartStream, what: str, *, restarts: bool
) -> None:
    run = _with_a_publication_of_somebody_else(database, start_stream, failOnDataLoss="false")
    if restarts:
        run.stop()
    _make_again(run, what, "p")
    # The publication that a running stream goes on with is noted when it is started the next time.
    for fails in ("false", "true"):
        database.execute(f"UPDATE t SET v = 'before {fails}'")
        run.catch_up()
        run.restart(failOnDataLoss=fails)
    run.finish()


@pytest.mark.parametrize("own", [True, False], ids=["its own", "of somebody else"])
def test_a_publication_that_was_altered_while_the_stream_was_stopped_is_named_once(
    database: Database, start_stream: StartStream, caplog: pytest.LogCaptureFixture, *, own: bool
) -> None:
    if own:
        run = started(start_stream, "while the log is followed")
    else:
        run = _with_a_publication_of_somebody_else(database, start_stream)
    name = run.slot if own else "p"
    run.stop()
    database.execute(f"ALTER PUBLICATION {name} SET (publish = 'insert')")
    database.execute("UPDATE t SET v = 'left out' WHERE id < 20")
    database.execute(f"ALTER PUBLICATION {name} SET (publish = 'insert, update, delete, truncate')")
    database.execute("UPDATE t SET v = 'not left out' WHERE id = 50")  # So there is a batch that notes it.
    run.catch_up()
    assert run.fold.rows[(15,)]["v"] != "left out"
    (warning,) = logged(caplog)
    assert warning.startswith(f"publication {name} was altered, or got another owner, since the query was last started")
    run.restart()
    run.catch_up()
    assert logged(caplog) == [warning]
    run.fold.supersedes = True
    assert main(["re-backfill", "--state-dir", run.options["stateDir"]]) == 0
    run.finish()


def test_a_publication_that_gets_other_tables_is_not_reported_as_altered(
    database: Database, start_stream: StartStream, caplog: pytest.LogCaptureFixture
) -> None:
    run = _with_a_publication_of_somebody_else(database, start_stream)
    run.stop()
    database.execute("CREATE TABLE other (id int); ALTER PUBLICATION p ADD TABLE other")
    database.execute("VACUUM FREEZE pg_publication")
    run.catch_up()
    run.stop()
    database.execute("ALTER PUBLICATION p SET TABLE t")
    for catalog in ("pg_publication", "pg_publication_rel"):
        database.execute(f"VACUUM FULL {catalog}")
    run.finish()
    assert logged(caplog) == []


def test_without_failing_on_data_loss_a_publication_that_was_made_again_is_reported_once(
    database: Database, start_stream: StartStream, caplog: pytest.LogCaptureFixture
) -> None:
    run = started(start_stream, "while the log is followed", failOnDataLoss="false")
    _make_again(run, "the table's place in it", run.slot)
    with caplog.at_level(logging.ERROR, "backfill"):
        for number in range(3):
            database.execute(f"UPDATE t SET v = '{number}'")
            run.catch_up()
    assert len([record for record in caplog.records if "publication" in record.getMessage()]) == 1
    run.restart(failOnDataLoss="true")
    run.finish()


@RESTARTS
def test_without_failing_on_data_loss_a_publication_of_the_stream_that_was_dropped_is_made_again(
    database: Database, start_stream: StartStream, *, restarts: bool
) -> None:
    if not restarts:
        require_version(database, 180_000, "a log that can be read without its publication")
    run = started(start_stream, "while the log is followed", failOnDataLoss="false")
    database.execute(f"DROP PUBLICATION {run.slot}")
    database.execute("UPDATE t SET v = 'lost' WHERE id = 1")
    if restarts:
        run.restart()
    run.catch_up()
    database.execute("UPDATE t SET v = 'not lost' WHERE id = 2")
    run.catch_up()
    run.restart(failOnDataLoss="true")
    run.catch_up()
    assert (run.fold.rows[(1,)]["v"], run.fold.rows[(2,)]["v"]) == ("read", "not lost")


LEFT_OUT = {
    "the schema": (
        "ALTER PUBLICATION p DROP TABLES IN SCHEMA public; UPDATE t SET v = 'lost'",
        "ALTER PUBLICATION p ADD TABLES IN SCHEMA public",
    ),
    "the table": (
        "ALTER TABLE t SET SCHEMA other; UPDATE other.t SET v = 'lost'",
        "ALTER TABLE other.t SET SCHEMA public",
    ),
}


@pytest.mark.parametrize("what", LEFT_OUT)
def test_a_publication_of_a_schema_that_left_it_out_for_a_while_ends_a_running_stream(
    database: Database, start_stream: StartStream, what: str
) -> None:
    require_version(database, 150_000, "such a publication")
    database.execute("CREATE PUBLICATION p FOR TABLES IN SCHEMA public; CREATE SCHEMA other")
    run = started(start_stream, "while the log is followed", publicationName="p")
    for statements in LEFT_OUT[what]:
        database.execute(statements)
    database.execute("UPDATE t SET v = 'not lost' WHERE id = 1")
    with pytest.raises(DataLossError, match="the table or its schema was taken out of it and put back"):
        run.catch_up()


@RESTARTS
def test_a_publication_of_all_tables_but_this_one_ends_the_stream(
    database: Database, start_stream: StartStream, *, restarts: bool
) -> None:
    require_version(database, 190_000, "such a publication")
    database.execute("CREATE PUBLICATION p FOR ALL TABLES")
    run = started(start_stream, "while the log is followed", publicationName="p")
    database.execute("ALTER PUBLICATION p SET ALL TABLES EXCEPT (TABLE t); UPDATE t SET v = 'lost'")
    refused(run, DatabaseSetupError, "EXCEPT some, of which the table is one; run ALTER PUBLICATION", restarts=restarts)


def test_a_table_that_was_moved_out_of_the_schema_that_is_published_is_reported_as_left_out(
    database: Database, start_stream: StartStream
) -> None:
    require_version(database, 150_000, "such a publication")
    database.execute("CREATE PUBLICATION p FOR TABLES IN SCHEMA public; CREATE SCHEMA other")
    run = started(start_stream, "while the log is followed", publicationName="p")
    database.execute("ALTER TABLE t SET SCHEMA other; UPDATE other.t SET v = 'lost'")
    with pytest.raises(TableError, match="the changes since the table left that schema are not in the log: start over"):
        run.catch_up()
    run.restart(dbtable="other.t")
    with pytest.raises(
        DatabaseSetupError, match=r"does not publish the table .*Changes that it leaves out until then are missing"
    ):
        run.catch_up()


def test_another_owner_of_a_publication_ends_a_running_stream_which_may_be_started_again(
    database: Database, start_stream: StartStream, stranger: str
) -> None:
    run = started(start_stream, "while the log is followed")
    database.execute(f"ALTER ROLE {stranger} SUPERUSER; ALTER PUBLICATION {run.slot} OWNER TO {stranger}")
    database.execute("UPDATE t SET v = 'not lost'")
    with pytest.raises(
        DataLossError, match="If only its owner was changed, nothing is lost: start the query again as it is"
    ):
        run.catch_up()
    run.restart()
    run.finish()


def test_another_comment_on_a_publication_ends_a_stream_when_it_is_started_and_may_be_put_back(
    database: Database, start_stream: StartStream
) -> None:
    run = started(start_stream, "while the log is followed")
    database.execute(f"COMMENT ON PUBLICATION {run.slot} IS 'for the lake'; UPDATE t SET v = 'not lost'")
    run.catch_up()
    run.require_equal()
    run.restart()
    with pytest.raises(DataLossError, match="If somebody only changed the comment, nothing is lost") as found:
        run.catch_up()
    (statement,) = re.findall(r"run (COMMENT ON PUBLICATION .* IS '.*') and", str(found.value))
    database.execute(statement)
    run.restart()
    run.finish()


def _with_a_publication_of_somebody_else(database: Database, start_stream: StartStream, **options: str) -> StreamRun:
    """A stream that has read all rows, with a publication `p` that it did not make."""
    run = start_stream(vnodeCount="4", numPartitions="2", publicationName="p", **options)
    table_of(database, 100)
    database.execute("CREATE PUBLICATION p FOR TABLE t")
    return following(run, "while the log is followed")


def _make_again(run: StreamRun, what: str, publication: str) -> None:
    for statement in MADE_AGAIN[what]:
        run.database.execute(statement.format(publication))
