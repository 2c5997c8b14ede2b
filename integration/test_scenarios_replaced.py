"""Columns that are other ones under the same name, or that were given other values in place."""

from __future__ import annotations

import logging

import pytest

from backfill.errors import SchemaChangedError, SnapshotGoneError
from integration.database import Database
from integration.definition import WHEN, refused, started
from integration.fixtures.streams import StartStream
from integration.stream_harness import table_of
from integration.versions import require_version

REPLACED = {
    "dropped and added again": "ALTER TABLE t DROP COLUMN v; ALTER TABLE t ADD COLUMN v text",
    "exchanged with another": "ALTER TABLE t RENAME v TO x; ALTER TABLE t RENAME w TO v; ALTER TABLE t RENAME x TO w",
}


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


@pytest.mark.parametrize("when", ["between chunks", "in the log"])
@pytest.mark.parametrize(
    "change", ["n TYPE numeric(10,1)", "at TYPE timestamp(0)", "c TYPE char(9)", "u TYPE varchar(4)"]
)
def test_a_column_that_is_cut_or_rounded_ends_a_running_stream(
    database: Database, start_stream: StartStream, when: str, change: str
) -> None:
    """All its values may be others now, and in the change log there is none of them."""
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
    """What was written before it is read first, by the process that still can."""
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
    """The server takes it where only blanks go."""
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
    (said,) = caplog.messages
    assert "column id of " in said
    assert "start over with a fresh checkpointLocation" in said


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
    run.catch_up()


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
    """That it was written anew alone would have the stream go on once it is started again, with values from before."""
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
    with pytest.raises(SnapshotGoneError, match="written anew"):
        run.read_part(part)
    run.restart()
    run.backfill(30)


@pytest.mark.parametrize("when", ["planned", "between chunks", "stopped"])
@pytest.mark.parametrize("change", REPLACED)
def test_rows_are_not_chosen_by_another_column_that_has_the_name_of_the_one_before(
    database: Database, start_stream: StartStream, when: str, change: str
) -> None:
    """A stream does not carry all columns by which it chooses."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text, w text)")
    database.execute("INSERT INTO t SELECT i, i % 2, 1 - i % 2 FROM generate_series(1, 100) i; ANALYZE t")
    run = start_stream(columns="id", snapshotFilter="v = '0'", vnodeCount="2", numPartitions="1")
    run.batch(10)
    assert run.plan(10)
    if when != "planned":
        run.commit(run.read())
    if when == "stopped":
        run.stop()
    database.execute(REPLACED[change])
    with pytest.raises(SchemaChangedError, match=r"column v of|a column of .* that snapshotFilter names"):
        run.commit(run.read()) if when == "planned" else run.batch(10)
    run.restart()
    with pytest.raises(SchemaChangedError, match=r"a column of .* that snapshotFilter names"):
        run.batch(10)


def test_a_column_with_quotes_in_its_name_is_watched_too(database: Database, start_stream: StartStream) -> None:
    database.execute("""CREATE TABLE t (id int PRIMARY KEY, "a""\" text, b text)""")
    database.execute("INSERT INTO t SELECT i, i % 2, 1 - i % 2 FROM generate_series(1, 100) i; ANALYZE t")
    run = start_stream(columns="id", snapshotFilter=""""a""\" = '0'""", vnodeCount="2", numPartitions="1")
    run.batch(10)
    database.execute("""ALTER TABLE t RENAME "a""\" TO c""")
    database.execute("""ALTER TABLE t RENAME b TO "a""\" """)
    with pytest.raises(SchemaChangedError, match="column a"):
        run.batch(10)


def test_a_column_that_is_added_with_the_name_of_a_word_of_the_filter_is_none_that_it_is_of(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 100)
    run = start_stream(columns="id", snapshotFilter="v <> 'open' AND lower(v) <> 'shut' -- w", select="id")
    run.batch(10)
    run.stop()
    database.execute("ALTER TABLE t ADD open text, ADD shut text, ADD w text, ADD lower text")
    run.restart()
    run.finish()
    run.stop()
    database.execute("ALTER TABLE t DROP open, DROP shut, DROP w")
    run.restart()
    run.finish()


@pytest.mark.parametrize("changelog", ["logged", "full"])
def test_changes_of_when_another_column_had_the_name_are_not_taken_for_its_own(
    database: Database, start_stream: StartStream, changelog: str
) -> None:
    """When the stream looks the names are as they were."""
    table_of(database, 100)
    database.execute("ALTER TABLE t ADD COLUMN w text DEFAULT 'w'")
    run = started(start_stream, "in the log", changelog=changelog)
    exchange = REPLACED["exchanged with another"]
    database.execute(f"{exchange}; UPDATE t SET v = 'new' WHERE id = 5; {exchange}")
    told = "column 'w' was another one, which had that name; column 'v' was another one"
    refused(run, SchemaChangedError, told)
    run.restart()
    refused(run, SchemaChangedError, told)
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


@pytest.mark.parametrize("change", ["n TYPE numeric(10,1)", "g SET EXPRESSION AS (id * 3)", "u TYPE varchar(9)"])
def test_a_column_that_was_given_other_values_while_the_query_was_stopped_is_named_at_the_next_start(
    database: Database, start_stream: StartStream, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    """A running stream would have ended. One that is started again after that goes on as well."""
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
            (said,) = caplog.messages
            assert f"column {change[0]} of " in said
            assert "backfill re-backfill" in said
            caplog.clear()
        database.execute("UPDATE t SET v = 'new' WHERE id = 5")
        run.catch_up()
        run.restart()
        run.catch_up()
    assert caplog.messages == []


def test_that_a_column_is_no_longer_computed_is_not_said(
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
    assert caplog.messages == []


@pytest.mark.parametrize("change", ["DROP v", "RENAME v TO other", "ALTER v TYPE int USING v::int"])
def test_a_column_that_rows_are_chosen_by_and_is_gone_is_named_with_what_goes_on(
    database: Database, start_stream: StartStream, change: str
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text, w text)")
    database.execute("INSERT INTO t SELECT i, i % 2, i FROM generate_series(1, 100) i; ANALYZE t")
    run = start_stream(columns="id", snapshotFilter="v IN ('0')", vnodeCount="2", numPartitions="1", select="id")
    run.batch(10)
    database.execute(f"ALTER TABLE t {change}")
    with pytest.raises(SchemaChangedError, match=r"column v of .*, by which snapshotFilter chooses rows, was dropped"):
        run.batch(10)
    if change.startswith("RENAME"):
        database.execute("ALTER TABLE t RENAME other TO v")
        run.restart()
        run.batch(100)
        assert sorted(run.fold.rows) == [(number,) for number in range(2, 101, 2)]
