"""The table's definition changes between chunks, between the snapshot and the log, and while the log is followed."""

from __future__ import annotations

import logging

import pytest

from backfill.__main__ import main
from backfill.errors import DefiniteError, OptionsError, SchemaChangedError, StateError, TableError
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.servers import Server
from integration.stream_harness import StreamRun, table_of
from integration.versions import require_version

WHEN = {"between chunks": 30, "between the snapshot and the log": 200, "in the log": 200}


def started(start_stream: StartStream, when: str, **options: str) -> StreamRun:
    """A stream that stands where the definition is about to change."""
    run = start_stream(vnodeCount="4", numPartitions="2", **options)
    run.batch(WHEN[when])
    if when == "in the log":
        run.database.execute("UPDATE t SET v = 'in the log' WHERE id < 10")
        run.catch_up()
    return run


def refused(run: StreamRun, kind: type[DefiniteError], match: str) -> None:
    """The stream goes no further, and has emitted nothing of what it refuses."""
    offsets, rows = len(run.offsets), dict(run.fold.rows)
    with pytest.raises(kind, match=match):
        run.catch_up(30)
    assert run.fold.rows == rows
    assert len(run.offsets) <= offsets + 1


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


def test_changes_from_when_the_key_had_another_name_take_a_new_stream(
    database: Database, start_stream: StartStream
) -> None:
    """No choice of columns leads past them."""
    table_of(database, 100)
    run = started(start_stream, "in the log")
    database.execute("ALTER TABLE t RENAME id TO i; UPDATE t SET v = 'w'; ALTER TABLE t RENAME i TO id")
    refused(run, SchemaChangedError, r"column 'id' is missing\. A column of the key .*onExistingState=restart")


@pytest.mark.parametrize("change", ["DROP COLUMN v", "RENAME v TO w"])
def test_a_column_that_is_lost_before_the_first_batch_is_not_said_to_be_unpublished(
    database: Database, start_stream: StartStream, change: str
) -> None:
    table_of(database, 3)
    run = start_stream()
    assert run.stream().table.columns.names == ["id", "v"]
    database.execute(f"ALTER TABLE t {change}")
    with pytest.raises(SchemaChangedError, match=r"column v (of .* )?was dropped.*\. Start the query again"):
        run.batch()
    run.restart()
    run.finish()


@pytest.mark.parametrize("change", ["DROP COLUMN v", "RENAME v TO w"])
def test_a_column_that_is_lost_is_not_said_to_be_the_publications(
    database: Database, start_stream: StartStream, change: str
) -> None:
    """No row has changed since, so the log says nothing of it; and started again the stream goes on, as it is told."""
    table_of(database, 100)
    run = started(start_stream, "in the log")
    database.execute(f"ALTER TABLE t {change}")
    refused(run, SchemaChangedError, r"column v of .* was dropped, renamed or .* Start the query again")
    run.restart()
    database.execute("UPDATE t SET id = id + 1000")  # so that every row comes with the columns of now
    run.finish()


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
@pytest.mark.parametrize("change", ["n TYPE numeric(10,1)", "at TYPE timestamp(0)", "c TYPE char(9)"])
def test_a_column_that_is_cut_or_rounded_ends_a_running_stream(
    database: Database, start_stream: StartStream, when: str, change: str
) -> None:
    """All its values may be others now, and in the change log there is none of them."""
    table_of(database, 100)
    database.execute("ALTER TABLE t ADD n numeric(10,2) DEFAULT 1.25, ADD at timestamp DEFAULT now(), ADD c char(5)")
    run = started(start_stream, when)
    database.execute(f"ALTER TABLE t ALTER {change}; UPDATE t SET v = 'new' WHERE id = 5")
    refused(run, SchemaChangedError, f"column {change.split(maxsplit=1)[0]} of")


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


def test_an_index_of_the_key_that_sorts_otherwise_by_now_is_noticed_after_a_restart(
    database: Database, start_stream: StartStream
) -> None:
    index = "CREATE UNIQUE INDEX i ON t (id {}); ALTER TABLE t REPLICA IDENTITY USING INDEX i"
    database.execute('CREATE TABLE t (id text COLLATE "en_US.utf8" NOT NULL, v text)')
    database.execute("INSERT INTO t SELECT chr(65 + i % 7 + i % 2 * 32) || i, 'v' FROM generate_series(1, 100) i")
    database.execute(index.format("text_pattern_ops"))
    run = started(start_stream, "between chunks")
    run.stop()
    database.execute(f"DROP INDEX i; {index.format('')}")
    refused(run, SchemaChangedError, 'another operator class or collation .the default, expected "id" .*~<~')
    run.stop()
    database.execute(f"DROP INDEX i; {index.format('text_pattern_ops')}")
    run.finish()


@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
def test_a_key_that_is_given_another_order_ends_the_backfill_and_may_have_the_old_one_back(
    database: Database, start_stream: StartStream, *, restarts: bool
) -> None:
    alter = 'ALTER TABLE t ALTER id TYPE text COLLATE "{}"'
    database.execute('CREATE TABLE t (id text COLLATE "C" PRIMARY KEY, v text)')
    database.execute("INSERT INTO t SELECT chr(65 + i % 7 + i % 2 * 32) || i, 'v' FROM generate_series(1, 100) i")
    run = started(start_stream, "between chunks")
    database.execute(alter.format("en_US.utf8"))
    if restarts:
        run.restart()
    refused(run, SchemaChangedError, 'another collation.*expected "id" "pg_catalog"."C"')
    database.execute(alter.format("C"))
    run.restart()
    run.backfill(30)
    run.finish()


def test_after_a_chunk_that_was_read_later_the_order_of_keys_still_matters(
    database: Database, start_stream: StartStream
) -> None:
    """All rows have been read, and which changes the chunk shows already goes by its ranges."""
    alter = 'ALTER TABLE t ALTER id TYPE text COLLATE "{}"'
    database.execute('CREATE TABLE t (id text COLLATE "C" PRIMARY KEY, v text)')
    database.execute("INSERT INTO t SELECT chr(65 + i % 7 + i % 2 * 32) || i, 'v' FROM generate_series(1, 100) i")
    run = start_stream(vnodeCount="1")
    run.plan()
    run.stop()
    database.execute("UPDATE t SET v = 'seen by the chunk'")
    run.commit(run.read())
    assert run.backfilled
    run.stop()
    database.execute(alter.format("en_US.utf8"))
    refused(run, SchemaChangedError, 'another collation.*expected "id" "pg_catalog"."C"')
    run.stop()
    database.execute(alter.format("C"))
    run.finish()


@pytest.mark.parametrize("when", ["between chunks", "in the log"])
def test_a_partition_that_ceases_to_log_the_key_ends_the_stream(
    database: Database, start_stream: StartStream, when: str
) -> None:
    """The root's description, which is all that the log has, does not tell: an update that moves a key would pass as
    one of another row."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, other int NOT NULL, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (1000); CREATE UNIQUE INDEX other ON t_1 (other);"
        "INSERT INTO t SELECT i, i, 'v' FROM generate_series(1, 100) i; ANALYZE t"
    )
    run = started(start_stream, when)
    database.execute("ALTER TABLE t_1 REPLICA IDENTITY USING INDEX other; UPDATE t SET id = 500 WHERE id = 1")
    refused(run, TableError, r'"t_1" logs of an old row other, expected its key \(id\).*start over')
    run.restart()
    refused(run, TableError, r'"t_1" logs of an old row other, expected its key \(id\).*start over')


def test_a_partition_whose_old_rows_would_pass_for_whole_ones_ends_the_stream(
    database: Database, start_stream: StartStream
) -> None:
    """The log says of each old row what the root's identity is; the columns that the partition leaves out are null."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, other int NOT NULL, v text NOT NULL) PARTITION BY RANGE (id);"
        "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (1000); CREATE UNIQUE INDEX wider ON t_1 (id, other);"
        "INSERT INTO t SELECT i, i, 'v' FROM generate_series(1, 100) i; ANALYZE t;"
        "ALTER TABLE t_1 REPLICA IDENTITY USING INDEX wider"
    )
    run = started(start_stream, "in the log")
    database.execute("UPDATE t SET other = 0 WHERE id = 1")
    run.finish()
    database.execute("ALTER TABLE t REPLICA IDENTITY FULL; UPDATE t SET other = -1 WHERE id = 1")
    refused(run, TableError, r'"t_1" logs of an old row id, other, expected just its key \(id\) or all .*DEFAULT')
    run.restart()
    refused(run, TableError, "expected just its key")


@pytest.mark.parametrize("change", ["RENAME TO temper", "SET SCHEMA elsewhere"])
def test_a_type_of_the_key_that_got_another_name_ends_a_running_backfill_which_may_be_started_again(
    database: Database, start_stream: StartStream, change: str
) -> None:
    database.execute(
        "CREATE SCHEMA elsewhere; CREATE TYPE mood AS ENUM ('glad', 'sad');"
        "CREATE TABLE t (mood mood, id int, v text, PRIMARY KEY (mood, id));"
        "INSERT INTO t SELECT (ARRAY['glad', 'sad'])[i % 2 + 1]::mood, i, 'v' FROM generate_series(1, 100) i; ANALYZE t"
    )
    run = start_stream(key=("mood", "id"), vnodeCount="4", numPartitions="2")
    run.batch(30)
    database.execute(f"ALTER TYPE mood {change}")
    refused(run, SchemaChangedError, 'type "public.mood" does not exist.*Start the query again')
    run.restart()
    run.backfill(30)
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


@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("when", WHEN)
def test_another_primary_key_ends_the_stream(
    database: Database, start_stream: StartStream, when: str, *, restarts: bool
) -> None:
    database.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text, other bigint NOT NULL)")
    database.execute("INSERT INTO t SELECT i, 'v', 1000 - i FROM generate_series(1, 100) i; ANALYZE t")
    run = started(start_stream, when)
    database.execute("ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t ADD PRIMARY KEY (other)")
    database.execute("UPDATE t SET other = other + 5000 WHERE id < 50; DELETE FROM t WHERE id = 60")
    if restarts:
        run.restart()
    refused(run, DefiniteError, r"key")


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
        refused(run, DefiniteError, "table")


def test_an_option_that_names_a_lost_column_is_refused(database: Database, start_stream: StartStream) -> None:
    table_of(database, 10)
    run = start_stream(columns="id,v")
    run.batch(5)
    database.execute("ALTER TABLE t DROP COLUMN v")
    run.restart()
    with pytest.raises(OptionsError, match="no column 'v'"):
        run.batch()
