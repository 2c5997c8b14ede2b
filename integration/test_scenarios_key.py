"""The key's columns are given another type, order or name: in mid-backfill, and long after it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from backfill.command.requests import ask_again, ask_to_stop
from backfill.errors import OffsetError, SchemaChangedError, StateError
from integration.collated import COLLATE, COLLATED, followed
from integration.database import Database
from integration.definition import refused
from integration.fixtures.streams import StartStream

REGIONS = (
    "CREATE TYPE region AS ENUM ('west', 'north', 'east', 'south');"
    "CREATE TABLE t (region region, id int, v text, PRIMARY KEY (region, id));"
    "INSERT INTO t SELECT (ARRAY['west', 'north', 'east', 'south'])[i % 4 + 1]::region, i, 'v'"
    "FROM generate_series(1, 200) i; ANALYZE t"
)
WIDEN = "ALTER TABLE t ALTER id TYPE bigint"


@pytest.fixture(autouse=True)
def _every_barrier_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backfill.state_dir.record.FOLLOW_INTERVAL", 0.0)


def test_a_key_that_is_given_another_type_ends_the_backfill_and_may_have_the_old_one_back(
    database: Database, start_stream: StartStream
) -> None:
    """Both are text in Arrow; but the values of an enum are in another order than their texts."""
    database.execute(REGIONS)
    run = start_stream(key=("region", "id"), vnodeCount="1", numPartitions="1")
    run.batch(50)
    run.stop()
    database.execute("ALTER TABLE t ALTER region TYPE text")
    refused(run, SchemaChangedError, r"another type.* 1 25, 2 23, expected 1 \d{5,}, 2 23\).*Change it back")
    run.stop()
    database.execute("ALTER TABLE t ALTER region TYPE region USING region::region")
    run.backfill(50)
    run.finish()


def test_a_column_that_took_the_name_of_one_of_the_key_ends_the_backfill_after_a_restart(
    database: Database, start_stream: StartStream
) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, other int UNIQUE NOT NULL);"
        "INSERT INTO t SELECT i, 1000 - i FROM generate_series(1, 100) i; ANALYZE t"
    )
    run = start_stream(vnodeCount="4", numPartitions="2")
    run.batch(30)
    run.stop()
    database.execute(
        "ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t RENAME id TO former; ALTER TABLE t RENAME other TO id;"
        "ALTER TABLE t ADD PRIMARY KEY (id)"
    )
    refused(run, SchemaChangedError, "another column got its name.*2 23, expected 1 23")


def test_a_key_that_is_widened_ends_the_backfill(database: Database, start_stream: StartStream) -> None:
    table_of_ints(database)
    run = start_stream(vnodeCount="4", numPartitions="2")
    run.batch(30)
    run.stop()
    database.execute(WIDEN)
    refused(run, SchemaChangedError, r"the key of \"public\".\"t\" is \(id int64\) and was \(id int32\)")


def test_a_key_that_is_given_another_type_by_an_option_ends_the_backfill_until_that_is_taken_back(
    database: Database, start_stream: StartStream
) -> None:
    table_of_ints(database)
    run = start_stream(vnodeCount="4", numPartitions="2")
    run.batch(30)
    run.restart(customSchema="id STRING")
    refused(run, SchemaChangedError, "Give it back .* with the former customSchema")
    run.restart(customSchema="")
    run.finish()


def table_of_ints(database: Database) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT i, 'v' FROM generate_series(1, 100) i;"
        "ANALYZE t"
    )


@pytest.mark.parametrize("name", ["key_types", "order", "last_column", "table_id", "timeline"])
def test_a_checkpoint_without_the_key_or_the_log_is_refused(
    database: Database, start_stream: StartStream, name: str
) -> None:
    table_of_ints(database)
    run = start_stream()
    run.batch(30)
    run.stop()
    offset = json.loads(run.offsets[-1])
    del offset["upstream"][name]
    run.offsets[-1] = json.dumps(offset, separators=(",", ":"), ensure_ascii=False)
    refused(run, OffsetError, f"does not say its {name}: .*Start over")


@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
def test_after_the_backfill_a_restart_goes_on_with_a_key_that_was_widened(
    database: Database, start_stream: StartStream, *, restarts: bool
) -> None:
    table_of_ints(database)
    run = followed(start_stream())
    if restarts:
        run.stop()
    database.execute(f"{WIDEN}; UPDATE t SET v = 'later' WHERE id < 5; INSERT INTO t VALUES (5000000000, 'large')")
    if not restarts:
        refused(run, SchemaChangedError, "column 'id' has the type with OID 20, expected OID 23")
        run.stop()
    run.catch_up()
    database.execute("UPDATE t SET v = 'later still' WHERE id < 5")
    run.catch_up()
    ask_again(Path(run.options["stateDir"]), None, None)
    run.batch(20)
    assert run.barrier().takes_again
    run.restart()
    run.finish()


@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
def test_changes_from_before_a_column_was_widened_are_read_as_those_after_it(
    database: Database, start_stream: StartStream, *, restarts: bool
) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, n smallint, s varchar(9));"
        "INSERT INTO t SELECT i, 'v', i, i FROM generate_series(1, 100) i; ANALYZE t"
    )
    run = followed(start_stream())
    if restarts:
        run.stop()
    database.execute("UPDATE t SET v = 'before', n = -n WHERE id < 9; DELETE FROM t WHERE id = 9")
    database.execute("UPDATE t SET id = -5, s = 'moved' WHERE id = 5")
    database.execute(f"{WIDEN}, ALTER n TYPE int, ALTER s TYPE text; UPDATE t SET v = 'after', n = 40000 WHERE id < 5")
    if not restarts:
        refused(run, SchemaChangedError, "column 'id' has the type with OID 20, expected OID 23")
        run.stop()
    run.finish()


def test_right_after_the_last_row_was_read_the_key_may_be_widened(
    database: Database, start_stream: StartStream
) -> None:
    table_of_ints(database)
    run = start_stream()
    run.backfill()
    run.catch_up()
    run.stop()
    assert run.barrier().has_manifest
    database.execute(f"{WIDEN}; UPDATE t SET v = 'later' WHERE id < 5")
    run.catch_up()
    run.restart()
    run.finish()


def test_a_new_checkpoint_resumes_with_a_key_that_was_widened(database: Database, start_stream: StartStream) -> None:
    table_of_ints(database)
    run = followed(start_stream())
    run.stop()
    database.execute(WIDEN)
    again = run.new_checkpoint()
    again.options = {**run.options, "onExistingState": "resume"}
    again.fold = run.fold
    for number in range(3):
        again.catch_up()
        database.execute("UPDATE t SET v = %s WHERE id < 5", [f"later {number}"])
    again.finish()


def test_after_the_backfill_a_restart_goes_on_with_a_key_in_another_order(
    database: Database, start_stream: StartStream
) -> None:
    database.execute(
        "CREATE TABLE t (a int, b int, v text, PRIMARY KEY (a, b));"
        "INSERT INTO t SELECT i % 5, i, 'v' FROM generate_series(1, 100) i; ANALYZE t"
    )
    other = "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (b, a); UPDATE t SET v = 'w' WHERE a = 3"
    run = followed(start_stream(key=("a", "b")))
    database.execute(f"BEGIN; {other}; COMMIT")
    run.catch_up()
    run.restart()
    database.execute("DELETE FROM t WHERE b = 7; UPDATE t SET b = b + 1000 WHERE b = 8")
    run.catch_up()
    ask_again(run.folder / "state", ("20", "0"), None)
    run.finish()


def test_after_the_backfill_a_key_of_other_columns_is_refused_though_the_state_directory_is_lost(
    database: Database, start_stream: StartStream
) -> None:
    """A row that keeps its new key would come as an update, and whoever goes by the old one would keep both."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, other int NOT NULL, v text);"
        "INSERT INTO t SELECT i, -i, 'v' FROM generate_series(1, 9) i"
    )
    run = followed(start_stream())
    run.stop()
    shutil.rmtree(run.options["stateDir"])
    database.execute("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (other)")
    refused(run, SchemaChangedError, r"has other columns than when the stream began \(.* 2 23, expected 1 23\)")
    run.stop()
    database.execute("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id); UPDATE t SET id = 50 WHERE id = 5")
    run.finish()


def test_in_mid_backfill_a_key_in_another_order_is_refused(database: Database, start_stream: StartStream) -> None:
    database.execute(
        "CREATE TABLE t (a int, b int, v text, PRIMARY KEY (a, b));"
        "INSERT INTO t SELECT i % 5, i, 'v' FROM generate_series(1, 100) i; ANALYZE t"
    )
    run = start_stream(key=("a", "b"), numPartitions="1")
    run.batch(30)
    run.stop()
    database.execute("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (b, a)")
    refused(run, StateError, r"is \(b, a\) and was \(a, b\)")


def test_rows_are_read_again_in_the_order_that_the_key_has_by_then(
    database: Database, start_stream: StartStream
) -> None:
    database.execute(COLLATED.format("en_US.utf8"))
    run = followed(start_stream(vnodeCount="4", numPartitions="1"))
    run.stop()
    database.execute(COLLATE.format("C"))
    ask_again(run.folder / "state", None, None)
    run.judged_batch(30)
    run.restart()
    run.catch_up(30)
    assert run.fold.counts["insert"] == 200
    run.finish()


def test_a_key_that_is_given_another_order_while_rows_are_read_again_is_noticed_after_a_restart(
    database: Database, start_stream: StartStream, tmp_path: Path
) -> None:
    database.execute(COLLATED.format("C"))
    run = followed(start_stream(vnodeCount="4", numPartitions="1"))
    run.restart()
    ask_again(tmp_path / "state", None, None)
    run.batch(30)
    run.stop()
    database.execute(COLLATE.format("en_US.utf8"))
    refused(run, SchemaChangedError, "another collation")


def test_rows_that_are_read_again_no_more_leave_the_key_free(
    database: Database, start_stream: StartStream, tmp_path: Path
) -> None:
    table_of_ints(database)
    run = followed(start_stream(vnodeCount="4", numPartitions="1"))
    ask_again(tmp_path / "state", None, None)
    run.batch(30)
    run.restart()
    database.execute(WIDEN)
    refused(run, SchemaChangedError, "int64.*was.*int32")
    run.stop()
    ask_to_stop(tmp_path / "state")
    database.execute("UPDATE t SET v = 'later' WHERE id < 5")
    run.catch_up()
    run.restart()
    run.finish()
