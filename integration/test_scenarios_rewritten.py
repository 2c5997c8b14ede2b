"""Columns that were given other values, another type or another length in place, of which the log tells nothing."""

from __future__ import annotations

import logging
import shutil

import pytest

from backfill.errors import SchemaChangedError, SnapshotGoneError
from integration.database import Database
from integration.definition import WHEN, refused, started
from integration.fixtures.streams import StartStream
from integration.stream_harness import table_of
from integration.versions import require_version
from integration.waiting import logged


@pytest.mark.parametrize("when", ["between chunks", "in the log"])
@pytest.mark.parametrize(
    "change", ["n TYPE numeric(10,1)", "at TYPE timestamp(0)", "c TYPE char(9)", "u TYPE varchar(4)"]
)
def test_a_column_that_is_cut_or_rounded_ends_a_running_stream(
    database: Database, start_stream: StartStream, when: str, change: str
) -> None:
    """All its values may be different now, and the change log has none of the new ones."""
    table_of(database, 100)
    database.execute("ALTER TABLE t ADD n numeric(10,2) DEFAULT 1.25, ADD at timestamp DEFAULT now(), ADD c char(5)")
    database.execute("ALTER TABLE t ADD u varchar DEFAULT 'cut    '")
    run = started(start_stream, when)
    database.execute(f"ALTER TABLE t ALTER {change}; UPDATE t SET v = 'new' WHERE id = 5")
    refused(run, SchemaChangedError, f"column {change.split(maxsplit=1)[0]} of")


@pytest.mark.parametrize("when", ["between chunks", "in the log"])
@pytest.mark.parametrize("change", ["n TYPE bigint USING n * 2", "n TYPE text USING 'x' || n", "id TYPE numeric"])
def test_another_type_ends_a_running_stream_also_where_no_row_is_written_after_it(
    database: Database, start_stream: StartStream, when: str, change: str
) -> None:
    """What was written before the change is read first, by the process that still can."""
    table_of(database, 100)
    database.execute("ALTER TABLE t ADD n int DEFAULT 1")
    run = started(start_stream, when)
    if when == "in the log":
        database.execute("UPDATE t SET n = 7 WHERE id = 5")
    database.execute(f"ALTER TABLE t ALTER {change}")
    if when == "in the log":
        run.catch_up()
        assert run.fold.rows[5,]["n"] == 7
        database.execute("CREATE TABLE another ()")
    refused(run, SchemaChangedError, f"column {change.split(maxsplit=1)[0]} of .* another type")


def test_a_key_that_gets_shorter_ends_the_stream_and_a_backfill_does_not_go_on(
    database: Database, start_stream: StartStream
) -> None:
    """The server allows it where only blanks are cut."""
    database.execute("CREATE TABLE t (id varchar(9) PRIMARY KEY, v text)")
    database.execute("INSERT INTO t SELECT i || '  ', 'old' FROM generate_series(100, 199) i; ANALYZE t")
    run = started(start_stream, "between chunks")
    database.execute("ALTER TABLE t ALTER id TYPE varchar(3)")
    refused(run, SchemaChangedError, "column id of")
    run.restart()
    refused(run, SchemaChangedError, "column id of the key .* length .* start over")


def test_a_key_that_got_shorter_while_the_query_was_stopped_is_named_with_the_way_out(
    database: Database, start_stream: StartStream, caplog: pytest.LogCaptureFixture
) -> None:
    database.execute("CREATE TABLE t (id varchar(9) PRIMARY KEY, v text)")
    database.execute("INSERT INTO t SELECT i || '  ', 'old' FROM generate_series(100, 199) i; ANALYZE t")
    run = start_stream()
    run.catch_up()
    run.stop()
    database.execute("ALTER TABLE t ALTER id TYPE varchar(3)")
    with caplog.at_level(logging.WARNING, "backfill"):
        run.restart()
        run.batch()
    (warning,) = logged(caplog)
    assert "column id of " in warning
    assert "start over with a fresh checkpointLocation" in warning


@pytest.mark.parametrize("when", ["between chunks", "in the log"])
def test_a_column_that_is_computed_anew_ends_a_running_stream(
    database: Database, start_stream: StartStream, when: str
) -> None:
    require_version(database, 180_000, "generated columns in the change log")
    table_of(database, 100)
    database.execute("ALTER TABLE t ADD g int GENERATED ALWAYS AS (id * 2) STORED")
    run = started(start_stream, when)
    database.execute("ALTER TABLE t ALTER g SET EXPRESSION AS (id * 3); UPDATE t SET v = 'new' WHERE id = 5")
    refused(run, SchemaChangedError, "column g of .* or expression")


def test_a_column_that_is_no_longer_computed_goes_on(database: Database, start_stream: StartStream) -> None:
    require_version(database, 180_000, "generated columns in the change log")
    table_of(database, 100)
    database.execute("ALTER TABLE t ADD g int GENERATED ALWAYS AS (id * 2) STORED")
    run = started(start_stream, "in the log")
    database.execute("ALTER TABLE t ALTER g DROP EXPRESSION; UPDATE t SET g = 7 WHERE id = 5")
    run.finish()
    assert run.fold.rows[(5,)]["g"] == 7


@pytest.mark.parametrize("when", WHEN)
def test_a_varchar_may_get_longer(database: Database, start_stream: StartStream, when: str) -> None:
    table_of(database, 100)
    database.execute("ALTER TABLE t ADD c varchar(5) DEFAULT 'short'")
    run = started(start_stream, when)
    database.execute("ALTER TABLE t ALTER c TYPE varchar(50); UPDATE t SET c = 'as long as that' WHERE id > 40")
    run.catch_up(30)
    run.finish()


@pytest.mark.parametrize("change", ["n TYPE numeric(10,1)", "n TYPE text", "v TYPE varchar(1) USING left(v, 1)"])
def test_a_chunk_is_not_read_of_a_table_that_was_written_anew_with_other_values(
    database: Database, start_stream: StartStream, change: str
) -> None:
    """If only the rewrite were told, the stream would go on when it is started again, with values from before."""
    table_of(database, 100)
    database.execute("ALTER TABLE t ADD n numeric(10,2) DEFAULT 1.25; UPDATE t SET v = 'long'")
    run = started(start_stream, "between chunks")
    run.plan(30)
    part = run.parts()[-1]
    database.execute(f"ALTER TABLE t ALTER {change}")
    with pytest.raises(SchemaChangedError, match=rf"column {change[0]} of .*backfill re-backfill"):
        run.read_part(part)


def test_a_chunk_of_a_table_that_was_written_anew_with_the_same_values_is_read_later(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 100)
    database.execute("ALTER TABLE t ADD c varchar(5) DEFAULT 'short', ADD x text, ADD n numeric(10,2)")
    run = started(start_stream, "between chunks", columns="id,v,c", select="id, v, c")
    run.plan(30)
    part = run.parts()[-1]
    database.execute("ALTER TABLE t ALTER c TYPE varchar(50), ALTER n TYPE int, DROP x")
    with pytest.raises(SnapshotGoneError, match="truncated or rewritten"):
        run.read_part(part)
    run.restart()
    run.backfill(30)


@pytest.mark.parametrize("change", ["n TYPE numeric(10,1)", "g SET EXPRESSION AS (id * 3)", "u TYPE varchar(9)"])
def test_a_column_that_was_given_other_values_while_the_query_was_stopped_is_named_at_the_next_start(
    database: Database, start_stream: StartStream, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    """A running stream would have ended, and after a restart it goes on as well."""
    require_version(database, 180_000, "generated columns in the change log")
    table_of(database, 100)
    database.execute("ALTER TABLE t ADD n numeric(10,2) DEFAULT 1.25, ADD g int GENERATED ALWAYS AS (id * 2) STORED")
    database.execute("ALTER TABLE t ADD c varchar(5), ADD u varchar DEFAULT 'cut         '")
    run = started(start_stream, "in the log")
    run.stop()
    database.execute(f"ALTER TABLE t ALTER {change}, ALTER c TYPE varchar(9)")
    with caplog.at_level(logging.WARNING, "backfill"):
        for _ in range(2):
            run.restart()
            run.catch_up()
            (warning,) = logged(caplog)
            assert f"column {change[0]} of " in warning
            assert "backfill re-backfill" in warning
            caplog.clear()
        database.execute("UPDATE t SET v = 'new' WHERE id = 5")
        run.catch_up()
        run.restart()
        run.catch_up()
    assert logged(caplog) == []


def test_a_varchar_that_got_a_length_is_named_by_what_an_earlier_release_noted(
    database: Database, start_stream: StartStream, caplog: pytest.LogCaptureFixture
) -> None:
    table_of(database, 100)
    database.execute("ALTER TABLE t ADD u varchar DEFAULT 'cut         '")
    run = started(start_stream, "in the log")
    run.stop()
    assert f"1043 {2**31 - 1}" in run.offsets[-1]
    run.offsets = [offset.replace(f"1043 {2**31 - 1}", "1043 -1") for offset in run.offsets]
    shutil.rmtree(run.options["stateDir"])  # It notes the offset as well, and is made again from the checkpoint.
    database.execute("ALTER TABLE t ALTER u TYPE varchar(9)")
    with caplog.at_level(logging.WARNING, "backfill"):
        run.catch_up()
    (warning,) = logged(caplog)
    assert "column u of " in warning


def test_that_a_column_is_no_longer_computed_is_not_reported(
    database: Database, start_stream: StartStream, caplog: pytest.LogCaptureFixture
) -> None:
    """Its values stay."""
    require_version(database, 180_000, "generated columns in the change log")
    table_of(database, 100)
    database.execute("ALTER TABLE t ADD g int GENERATED ALWAYS AS (id * 2) STORED")
    run = started(start_stream, "in the log")
    run.stop()
    database.execute("ALTER TABLE t ALTER g DROP EXPRESSION")
    with caplog.at_level(logging.WARNING, "backfill"):
        run.restart()
        run.catch_up()
    assert logged(caplog) == []
