"""Another key; another index, order or type name of the same key; or partitions that no longer log the key."""

from __future__ import annotations

import pytest

from backfill.errors import DefiniteError, SchemaChangedError, TableError
from integration.database import Database
from integration.definition import WHEN, refused, started
from integration.fixtures.streams import StartStream
from integration.stream_harness import next_changes, table_of


def test_changes_from_when_the_key_had_another_name_take_a_new_stream(
    database: Database, start_stream: StartStream
) -> None:
    """No choice of columns leads past them."""
    table_of(database, 100)
    run = started(start_stream, "in the log")
    database.execute("ALTER TABLE t RENAME id TO i; UPDATE t SET v = 'w'; ALTER TABLE t RENAME i TO id")
    refused(run, SchemaChangedError, r"column 'id' is missing\. A column of the key .*onExistingState=restart")


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
    """The log has only the root's description, which does not tell: a moved key would pass as another row's update."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, other int NOT NULL, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (1000); CREATE UNIQUE INDEX other ON t_1 (other);"
        "INSERT INTO t SELECT i, i, 'v' FROM generate_series(1, 100) i; ANALYZE t"
    )
    run = started(start_stream, when)
    database.execute("ALTER TABLE t_1 REPLICA IDENTITY USING INDEX other; UPDATE t SET id = 500 WHERE id = 1")
    refused(run, TableError, r'"t_1" logs other of an old row, expected its key \(id\).*start over')
    run.restart()
    refused(run, TableError, r'"t_1" logs other of an old row, expected its key \(id\).*start over')


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
    refused(run, TableError, r'"t_1" logs id, other of an old row, expected just its key \(id\) or all .*DEFAULT')
    run.restart()
    refused(run, TableError, "expected just its key")


def test_an_old_key_that_is_logged_as_a_whole_row_is_no_row_before_an_update(
    database: Database, start_stream: StartStream
) -> None:
    """The server logs the key before an update as well where its bytes change and its value does not, or where it is
    stored out of line. The root's identity says then that it is the row."""
    database.execute(
        "CREATE TABLE t (id float8 PRIMARY KEY, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (-9) TO (9);"
        "CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM (9) TO (99);"
        "ALTER TABLE t REPLICA IDENTITY FULL; ALTER TABLE t_2 REPLICA IDENTITY FULL;"
        "INSERT INTO t VALUES (0, 'a'), (10, 'b')"
    )
    run = start_stream()
    run.catch_up()
    database.execute("UPDATE t SET id = '-0', v = 'c' WHERE id = 0; UPDATE t SET v = 'd' WHERE id = 10")
    assert next_changes(run) == [
        ("update_postimage", 0, "c"),
        ("update_preimage", 10, "b"),
        ("update_postimage", 10, "d"),
    ]
    database.execute("ALTER TABLE t_1 REPLICA IDENTITY FULL; UPDATE t SET id = 0, v = null WHERE id = 0")
    assert next_changes(run) == [("update_preimage", 0, "c"), ("update_postimage", 0, None)]
    database.execute("UPDATE t SET v = 'e' WHERE id = 0")
    assert next_changes(run) == [("update_preimage", 0, None), ("update_postimage", 0, "e")]
    run.finish()


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
    refused(run, DefiniteError, r"key of .* is \(other\) and was \(id\)|does not cover the key of the stream")
