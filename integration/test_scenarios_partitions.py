"""Rows that come or go with their whole partition: the log has nothing of them, and the driver's log says so."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from backfill.__main__ import main
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.servers import LocalServer
from integration.stream_harness import StreamRun
from integration.versions import require_version
from integration.waiting import logged

TABLE = """
    CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
    CREATE TABLE t_0 PARTITION OF t FOR VALUES FROM (0) TO (100);
    CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (100) TO (200);
    CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM (200) TO (300) PARTITION BY RANGE (id);
    CREATE TABLE t_20 PARTITION OF t_2 FOR VALUES FROM (200) TO (210);
    INSERT INTO t SELECT g, 'old' FROM generate_series(90, 209) g
"""

NINTH = "CREATE TABLE t_9 (LIKE t INCLUDING ALL); INSERT INTO t_9 VALUES (900, 'came along')"
ATTACHED = "ALTER TABLE t ATTACH PARTITION t_9 FOR VALUES FROM (900) TO (1000)"


@pytest.fixture
def run(database: Database, start_stream: StartStream, caplog: pytest.LogCaptureFixture) -> Iterator[StreamRun]:
    """A stream that follows the log, while its warnings are captured."""
    database.execute(TABLE)
    stream = start_stream()
    stream.catch_up()
    with caplog.at_level(logging.WARNING, "backfill"):
        yield stream


def after(run: StreamRun, *statements: str) -> None:
    """Runs each statement in a transaction of its own; the stream goes on after them all."""
    for statement in statements:
        run.database.execute(statement)
    run.catch_up()


def test_rows_that_were_in_a_partition_before_it_was_attached_are_missed_with_a_warning(
    run: StreamRun, caplog: pytest.LogCaptureFixture
) -> None:
    after(run, NINTH, ATTACHED, "INSERT INTO t VALUES (901, 'in the log')")
    (warning,) = logged(caplog)
    assert warning.startswith('partition "public"."t_9" of "public"."t" was attached, and has rows')
    assert (900,) not in run.fold.rows
    assert (901,) in run.fold.rows
    run.fold.supersedes = True
    assert main(["re-backfill", "--from", "900", "--to", "999", "--state-dir", run.options["stateDir"]]) == 0
    after(run, "INSERT INTO t VALUES (902, 'in the log')")
    run.finish()
    assert logged(caplog) == [warning]


def test_rows_that_are_moved_into_a_partition_of_their_own_are_missed_with_a_warning(
    run: StreamRun, caplog: pytest.LogCaptureFixture
) -> None:
    """In one transaction, as pg_partman does it."""
    after(run, "CREATE TABLE rest PARTITION OF t DEFAULT; INSERT INTO t VALUES (900, 'moved')")
    assert logged(caplog) == []
    move = "DELETE FROM t WHERE id = 900 RETURNING *"
    after(run, f"CREATE TABLE t_9 (LIKE t INCLUDING ALL); WITH gone AS ({move}) INSERT INTO t_9 TABLE gone; {ATTACHED}")
    (warning,) = logged(caplog)
    assert '"t_9" of "public"."t" was attached, and has rows' in warning


def test_rows_of_a_partition_that_was_attached_before_the_server_crashed_are_missed_with_a_warning(
    own_database: tuple[LocalServer, Database], start_stream: StartStream, caplog: pytest.LogCaptureFixture
) -> None:
    server, database = own_database
    database.execute(TABLE)
    run = start_stream(database=database)
    run.catch_up()
    run.stop()
    database.execute("CHECKPOINT")
    for statement in ("CREATE TABLE t_3 PARTITION OF t FOR VALUES FROM (300) TO (400)", f"{NINTH}; {ATTACHED}"):
        database.execute(statement)
    server.kill()
    server.start()
    with caplog.at_level(logging.WARNING, "backfill"):
        after(run, "INSERT INTO t VALUES (1)")
    (warning,) = logged(caplog)
    assert '"t_9" of "public"."t" was attached, and has rows' in warning


def test_partitions_of_a_partitioned_one_that_is_attached_are_named_where_they_have_rows(
    run: StreamRun, caplog: pytest.LogCaptureFixture
) -> None:
    after(
        run,
        "CREATE TABLE t_9 (LIKE t INCLUDING ALL) PARTITION BY RANGE (id)",
        *(f"CREATE TABLE t_9{i} PARTITION OF t_9 FOR VALUES FROM (9{i}0) TO (9{i + 1}0)" for i in range(3)),
        "INSERT INTO t_9 VALUES (900), (920)",
        ATTACHED,
    )
    (warning,) = logged(caplog)
    assert warning.startswith('partition "public"."t_90", "public"."t_92" of "public"."t" was attached')


def test_what_comes_without_rows_or_has_got_them_through_the_table_is_not_worth_a_word(
    run: StreamRun, caplog: pytest.LogCaptureFixture
) -> None:
    after(
        run,
        f"{NINTH}; TRUNCATE t_9; {ATTACHED}",
        "CREATE TABLE t_3 PARTITION OF t (v DEFAULT '', CHECK (v <> 'x')) FOR VALUES FROM (300) TO (400)",
        "CREATE TABLE t_21 PARTITION OF t_2 FOR VALUES FROM (210) TO (220)",
        "CREATE TABLE t_4 PARTITION OF t FOR VALUES FROM (400) TO (500); INSERT INTO t VALUES (400)",
        "INSERT INTO t VALUES (210), (300)",
    )
    after(run, "INSERT INTO t VALUES (900)")
    run.finish()
    assert logged(caplog) == []


def test_partitions_that_came_while_a_stream_of_last_rows_was_stopped_make_no_batch(
    database: Database, start_stream: StartStream
) -> None:
    """Its bookmark has them; only the columns that last rows have must be in an offset at once."""
    database.execute(TABLE)
    run = start_stream(changelog="full")
    run.catch_up()
    run.stop()
    database.execute("CREATE TABLE t_3 PARTITION OF t FOR VALUES FROM (300) TO (400)")
    run.restart()
    assert not run.plan()
    after(run, "INSERT INTO t VALUES (300)")
    run.finish()


@pytest.mark.parametrize("statement", ["ALTER TABLE t DETACH PARTITION t_1", "DROP TABLE t_1"])
def test_rows_that_go_with_their_partition_stay_in_the_sink_with_a_warning(
    run: StreamRun, caplog: pytest.LogCaptureFixture, statement: str
) -> None:
    after(run, statement, "INSERT INTO t VALUES (1)")
    (warning,) = logged(caplog)
    assert warning.startswith('partition "public"."t_1" of "public"."t" was detached or dropped')
    assert (100,) in run.fold.rows
    after(run, "INSERT INTO t VALUES (2)")
    assert logged(caplog) == [warning]


def test_what_was_done_since_the_query_was_started_is_reported_when_it_is_started_again(
    run: StreamRun, caplog: pytest.LogCaptureFixture
) -> None:
    """The query may have been stopped at that time, and then knows no more of a dropped partition than its OID."""
    [(oid,)] = run.database.execute("SELECT 't_1'::regclass::oid::int8")
    run.stop()
    after(run, NINTH, ATTACHED, "ALTER TABLE t DETACH PARTITION t_2; DROP TABLE t_1; INSERT INTO t VALUES (1)")
    attached, dropped = logged(caplog)
    assert attached.startswith('since the query was last started, partition "public"."t_9" of "public"."t" was')
    assert dropped.startswith(f"since the query was last started, partition with the OID {oid}, ")
    run.restart()
    after(run, "INSERT INTO t VALUES (2)")
    assert logged(caplog) == [attached, dropped]


@pytest.mark.parametrize(
    ("part", "bounds", "leaf"), [("t_1", "(100) TO (200)", "t_1"), ("t_2", "(200) TO (300)", "t_20")]
)
def test_a_partition_that_was_away_between_two_looks_is_named(
    run: StreamRun, caplog: pytest.LogCaptureFixture, part: str, bounds: str, leaf: str
) -> None:
    detached, attached = f"ALTER TABLE t DETACH PARTITION {part}", f"ALTER TABLE t ATTACH PARTITION {part} FOR VALUES"
    seen = "INSERT INTO t VALUES (95 + 100, 'in the log') ON CONFLICT (id) DO UPDATE SET v = 'in the log too'"
    after(run, detached, f"UPDATE {leaf} SET v = 'away'", f"{attached} FROM {bounds}", seen)
    (warning,) = logged(caplog)
    assert warning.startswith(f'partition "public"."{part}" of "public"."t" was detached and attached again')
    after(run, seen)
    assert logged(caplog) == [warning]
    run.fold.supersedes = True
    assert main(["re-backfill", "--state-dir", run.options["stateDir"]]) == 0
    after(run, seen)
    run.finish()


AWAY = "ALTER TABLE t DETACH PARTITION t_1; ALTER TABLE t ATTACH PARTITION t_1 FOR VALUES FROM (100) TO (200)"


def test_a_partition_that_was_away_while_the_query_was_stopped_is_named(
    run: StreamRun, caplog: pytest.LogCaptureFixture
) -> None:
    run.stop()
    after(run, AWAY, "INSERT INTO t VALUES (1)")
    (warning,) = logged(caplog)
    assert warning.startswith(
        'since the query was last started, partition "public"."t_1" of "public"."t" was detached and attached again'
    )
    run.restart()
    after(run, "VACUUM FULL pg_inherits", "VACUUM FREEZE pg_inherits", "INSERT INTO t VALUES (2)")
    assert logged(caplog) == [warning]


def test_a_transaction_that_was_open_when_the_query_was_started_may_have_placed_a_partition_since(
    run: StreamRun, caplog: pytest.LogCaptureFixture
) -> None:
    with run.database.connect() as writer:
        writer.execute("CREATE TABLE other ()")
        run.database.execute("CREATE TABLE t_3 PARTITION OF t FOR VALUES FROM (300) TO (400)")
        run.restart()
        after(run, "INSERT INTO t VALUES (1)")
        run.stop()
        writer.execute(AWAY)
    after(run, "INSERT INTO t VALUES (2)")
    (warning,) = logged(caplog)
    assert 'partition "public"."t_1" of "public"."t" was detached and attached again' in warning


def test_the_place_of_a_stream_that_has_logged_no_batch_is_kept_when_the_query_is_started_again(
    database: Database, start_stream: StartStream
) -> None:
    """Whatever else has happened on the server: making it again may mean to wait for hours."""
    database.execute(TABLE)
    run = start_stream()
    assert run.plan(logged=False)
    asked = "SELECT slot_name, confirmed_flush_lsn FROM pg_replication_slots WHERE database = current_database()"
    made = database.execute(asked)
    database.execute("INSERT INTO t VALUES (1)")
    run.restart()
    assert run.plan()
    assert database.execute(asked) == made
    run.finish()


def test_a_partition_that_is_truncated_by_itself_is_named(run: StreamRun, caplog: pytest.LogCaptureFixture) -> None:
    after(run, "INSERT INTO t VALUES (1)")
    after(run, "TRUNCATE t_1", "INSERT INTO t VALUES (2)")
    (warning,) = logged(caplog)
    assert warning.startswith('partition "public"."t_1" of "public"."t" was truncated by itself')
    assert (100,) in run.fold.rows


def test_what_moves_rows_to_other_files_is_not_taken_for_that(run: StreamRun, caplog: pytest.LogCaptureFixture) -> None:
    after(run, "INSERT INTO t VALUES (1)")
    after(run, "VACUUM FULL t_1", "CLUSTER t_20 USING t_20_pkey", "INSERT INTO t VALUES (2)")
    after(run, "ALTER TABLE t ADD COLUMN w float8 DEFAULT random()", "INSERT INTO t VALUES (3)")
    assert not [message for message in logged(caplog) if message.startswith("partition")]


def test_a_truncation_of_the_whole_table_is_none_of_a_partition_whichever_were_counted_since(
    database: Database, start_stream: StartStream, caplog: pytest.LogCaptureFixture
) -> None:
    database.execute(TABLE)
    run = start_stream(onTruncate="emit")
    run.catch_up()
    after(run, "TRUNCATE t", "INSERT INTO t VALUES (1), (101)", "ANALYZE t_0")
    assert logged(caplog) == []
    run.finish()


@pytest.mark.parametrize("how", ["", "(CONCURRENTLY) "])
def test_a_repacked_partition_is_not_taken_for_that(run: StreamRun, caplog: pytest.LogCaptureFixture, how: str) -> None:
    require_version(run.database, 190_000, "REPACK")
    after(run, "INSERT INTO t VALUES (1)")
    after(run, f"REPACK {how}t_1", f"REPACK {how}t_20 USING INDEX t_20_pkey", "INSERT INTO t VALUES (2)")
    assert logged(caplog) == []
    run.finish()
