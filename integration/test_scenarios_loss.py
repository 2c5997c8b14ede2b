"""Somebody drops, moves or loses what the stream depends on: it ends before it emits anything with a gap in it."""

from __future__ import annotations

import logging
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from backfill.__main__ import main
from backfill.errors import DatabaseSetupError, DataLossError, DefiniteError, StateError
from backfill.record import FOLLOW_INTERVAL
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.servers import LocalServer
from integration.stream_harness import StreamRun, table_of
from integration.versions import require_version

WHEN = {"in the middle of the backfill": 30, "while the log is followed": 200}
RESTARTS = pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
AT_ANY_TIME = pytest.mark.parametrize("when", WHEN)


def started(start_stream: StartStream, when: str, **options: str) -> StreamRun:
    run = start_stream(vnodeCount="4", numPartitions="2", **options)
    table_of(run.database, 100)
    return following(run, when)


def following(run: StreamRun, when: str) -> StreamRun:
    run.batch(WHEN[when])
    run.database.execute("UPDATE t SET v = 'read' WHERE id < 10")
    run.batch(WHEN[when])
    return run


def refused(run: StreamRun, kind: type[DefiniteError], match: str, *, restarts: bool) -> None:
    """The stream goes no further, in this process or in a new one, and has emitted nothing."""
    rows = dict(run.fold.rows)
    for _ in range(2):
        if restarts:
            run.restart()
        with pytest.raises(kind, match=match):
            run.catch_up(30)
        assert run.fold.rows == rows
        restarts = True


@RESTARTS
@AT_ANY_TIME
def test_a_dropped_slot_ends_the_stream(
    database: Database, start_stream: StartStream, when: str, *, restarts: bool
) -> None:
    run = started(start_stream, when)
    database.execute("SELECT pg_drop_replication_slot(%s)", [run.slot])
    database.execute("UPDATE t SET v = 'lost' WHERE id < 20")
    refused(run, DataLossError, "does not exist.*failOnDataLoss=false", restarts=restarts)


@RESTARTS
@AT_ANY_TIME
def test_a_slot_that_was_dropped_and_made_again_ends_the_stream(
    database: Database, start_stream: StartStream, when: str, *, restarts: bool
) -> None:
    run = started(start_stream, when)
    database.execute("SELECT pg_drop_replication_slot(%s)", [run.slot])
    database.execute("UPDATE t SET v = 'lost' WHERE id < 20")
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [run.slot])
    database.execute("UPDATE t SET v = 'not lost' WHERE id < 15")
    refused(run, DataLossError, "made it again", restarts=restarts)


@RESTARTS
@AT_ANY_TIME
def test_a_slot_that_somebody_else_advanced_ends_the_stream(
    database: Database, start_stream: StartStream, when: str, *, restarts: bool
) -> None:
    run = started(start_stream, when)
    database.execute("UPDATE t SET v = 'lost' WHERE id < 20")
    database.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_insert_lsn())", [run.slot])
    refused(run, DataLossError, "somebody else advanced it", restarts=restarts)


@RESTARTS
def test_a_slot_of_another_plugin_under_the_same_name_is_not_read(
    database: Database, start_stream: StartStream, *, restarts: bool
) -> None:
    run = started(start_stream, "while the log is followed")
    database.execute("SELECT pg_drop_replication_slot(%s)", [run.slot])
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", [run.slot])
    database.execute("UPDATE t SET v = 'lost' WHERE id < 20")
    refused(run, DefiniteError, "test_decoding|proto_version", restarts=restarts)


@AT_ANY_TIME
def test_without_failing_on_data_loss_the_stream_goes_on_behind_the_gap(
    database: Database, start_stream: StartStream, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = started(start_stream, when, failOnDataLoss="false")
    database.execute("SELECT pg_drop_replication_slot(%s)", [run.slot])
    database.execute("UPDATE t SET v = 'lost' WHERE id = 1; UPDATE t SET v = 'lost' WHERE id = 100")
    run.restart()
    with caplog.at_level(logging.ERROR, "backfill"):
        run.catch_up(30)
    assert "although changes were lost" in caplog.text
    database.execute("UPDATE t SET v = 'not lost' WHERE id IN (2, 99); INSERT INTO t VALUES (101, 'not lost')")
    run.catch_up(30)
    assert {run.fold.rows[(key,)]["v"] for key in (2, 99, 101)} == {"not lost"}
    assert run.fold.rows[(1,)]["v"] == "read"
    database.execute("UPDATE t SET v = 'read' WHERE id = 1; UPDATE t SET v = 'v100' WHERE id = 100")
    run.finish()


MOVED = {
    "advanced": ["pg_replication_slot_advance('{0}', pg_current_wal_insert_lsn())"],
    "made again": ["pg_drop_replication_slot('{0}')", "pg_create_logical_replication_slot('{0}', 'pgoutput')"],
}


@RESTARTS
@AT_ANY_TIME
@pytest.mark.parametrize("how", MOVED)
def test_without_failing_on_data_loss_a_slot_that_was_moved_is_said_once(
    database: Database,
    start_stream: StartStream,
    when: str,
    how: str,
    caplog: pytest.LogCaptureFixture,
    *,
    restarts: bool,
) -> None:
    run = started(start_stream, when, failOnDataLoss="false")
    database.execute("UPDATE t SET v = 'lost' WHERE id = 1")
    for call in MOVED[how]:
        database.execute(f"SELECT {call.format(run.slot)}")
    if restarts:
        run.restart()
    with caplog.at_level(logging.ERROR, "backfill"):
        for number in range(3):
            database.execute(f"UPDATE t SET v = 'not lost {number}' WHERE id = 2")
            run.catch_up(30)
    assert (run.fold.rows[(1,)]["v"], run.fold.rows[(2,)]["v"]) == ("read", "not lost 2")
    (said,) = [record.getMessage() for record in caplog.records]
    assert "somebody else advanced it or made it again" in said


@RESTARTS
@pytest.mark.parametrize("fails", [True, False], ids=["failing", "going on"])
def test_a_slot_that_held_back_too_much_and_was_invalidated(
    start_postgres: Callable[..., LocalServer],
    start_stream: StartStream,
    *,
    restarts: bool,
    fails: bool,
) -> None:
    server = start_postgres(max_slot_wal_keep_size="1MB", min_wal_size="32MB", max_wal_size="32MB")
    database = Database(server, "postgres")
    table_of(database, 100)
    run = following(start_stream(database=database, failOnDataLoss=str(fails).lower()), "while the log is followed")
    database.execute("UPDATE t SET v = 'lost' WHERE id = 1")
    while database.execute("SELECT wal_status FROM pg_replication_slots") != [("lost",)]:
        database.execute("SELECT pg_switch_wal() FROM pg_logical_emit_message(false, '', repeat('x', 1000))")
        database.execute("CHECKPOINT")
    if fails:
        refused(run, DataLossError, "invalidated|can no longer|wal_status=lost", restarts=restarts)
        return
    if restarts:
        run.restart()
    else:
        with pytest.raises(DataLossError, match="start the query again with failOnDataLoss=false to go on"):
            run.catch_up()
        run.restart()
    run.catch_up()
    database.execute("UPDATE t SET v = 'not lost' WHERE id = 2")
    run.catch_up()
    assert (run.fold.rows[(1,)]["v"], run.fold.rows[(2,)]["v"]) == ("read", "not lost")


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
    refused(run, DefiniteError, "publication", restarts=restarts)


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


def test_without_failing_on_data_loss_a_publication_that_was_made_again_is_said_once(
    database: Database, start_stream: StartStream, caplog: pytest.LogCaptureFixture
) -> None:
    run = started(start_stream, "while the log is followed", failOnDataLoss="false")
    for statement in MADE_AGAIN["the table's place in it"]:
        database.execute(statement.format(run.slot))
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


def test_a_publication_of_a_schema_that_left_it_out_for_a_while_ends_a_running_stream(
    database: Database, start_stream: StartStream
) -> None:
    require_version(database, 150_000, "such a publication")
    database.execute("CREATE PUBLICATION p FOR TABLES IN SCHEMA public")
    run = started(start_stream, "while the log is followed", publicationName="p")
    for statement in ("DROP TABLES IN SCHEMA public", "ADD TABLES IN SCHEMA public"):
        database.execute(f"ALTER PUBLICATION p {statement}")
        database.execute("UPDATE t SET v = v || statement_timestamp()")
    with pytest.raises(DataLossError, match="the table or its schema was taken out of it and put back"):
        run.catch_up()


def test_another_owner_of_a_publication_ends_a_running_stream_which_may_be_started_again(
    database: Database, start_stream: StartStream, stranger: str
) -> None:
    run = started(start_stream, "while the log is followed")
    database.execute(f"ALTER ROLE {stranger} SUPERUSER; ALTER PUBLICATION {run.slot} OWNER TO {stranger}")
    database.execute("UPDATE t SET v = 'not lost'")
    with pytest.raises(DataLossError, match=r"nothing but its owner was changed.* started again as it is"):
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
    with pytest.raises(DataLossError, match="somebody gave it another comment, and then nothing is lost") as found:
        run.catch_up()
    (statement,) = re.findall(r"run (COMMENT ON PUBLICATION .* IS '.*') and", str(found.value))
    database.execute(statement)
    run.restart()
    run.finish()


def test_another_database_system_behind_the_url_is_not_taken_for_the_old_one(
    start_postgres: Callable[..., LocalServer], start_stream: StartStream
) -> None:
    run = started(start_stream, "while the log is followed")
    other = Database(start_postgres(), "postgres")
    table_of(other, 100)
    run.restart(**other.options)
    with pytest.raises((DataLossError, StateError), match="system"):
        run.catch_up()


def test_a_stream_is_not_ended_on_another_database_system(
    start_postgres: Callable[..., LocalServer],
    start_stream: StartStream,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Not even where that has a slot of the same name, which is then another stream's."""
    run = started(start_stream, "while the log is followed")
    slots = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    other = Database(start_postgres(), "postgres")
    table_of(other, 100)
    other.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [run.slot])
    run.stop()
    new = run.new_checkpoint()
    new.restart(**other.options, onExistingState="restart")
    with pytest.raises(DatabaseSetupError, match=r"nothing was dropped. Point url at the former.*delete stateDir"):
        new.batch()
    new.stop()
    drop = ("drop", "--state-dir", run.options["stateDir"], "--url")
    assert main([*drop, other.url(tmp_path)]) == 1
    assert f"replication slot {run.slot} is of system" in capsys.readouterr().err
    assert other.execute(slots) == [(run.slot,)]
    run.restart()
    run.finish()
    run.stop()
    assert main([*drop, run.database.url(tmp_path)]) == 0
    assert run.database.execute(slots) == []


def put_back(server: LocalServer, copy: Path) -> None:
    server.stop()
    data = server.folder / "data"
    shutil.rmtree(data)
    subprocess.run(["cp", "-a", copy, data], check=True)


def recover_to_a_new_timeline(server: LocalServer, copy: Path) -> None:
    put_back(server, copy)
    recover(server)


def recover(server: LocalServer) -> None:
    """It will be on a new timeline, as after a recovery to a point in time, or as a standby that was promoted."""
    with (server.folder / "data" / "postgresql.conf").open("a") as configuration:
        configuration.write("restore_command = 'false'\n")
    subprocess.run(
        ["cp", "-a", server.folder / "data" / "PG_VERSION", server.folder / "data" / "recovery.signal"], check=True
    )


@RESTARTS
@AT_ANY_TIME
@pytest.mark.parametrize("restore", [put_back, recover_to_a_new_timeline])
@pytest.mark.parametrize("fails", [True, False], ids=["failing", "going on"])
def test_a_server_that_was_restored_to_an_earlier_point_in_time_ends_the_stream(
    start_postgres: Callable[..., LocalServer],
    start_stream: StartStream,
    tmp_path: Path,
    restore: Callable[[LocalServer, Path], None],
    when: str,
    *,
    restarts: bool,
    fails: bool,
) -> None:
    """Whatever failOnDataLoss says while its log is shorter: what is new would lie where the stream has been."""
    server = start_postgres()
    database = Database(server, "postgres")
    table_of(database, 100)
    options = {"vnodeCount": "4", "numPartitions": "2", "failOnDataLoss": str(fails).lower()}
    run = following(start_stream(database=database, **options), when)
    server.stop()
    subprocess.run(["cp", "-a", server.folder / "data", tmp_path / "copy"], check=True)
    server.start()
    database.execute("UPDATE t SET v = 'undone' WHERE id < 20")
    run.batch(30)
    restore(server, tmp_path / "copy")
    server.start()
    while database.execute("SELECT pg_is_in_recovery()") == [(True,)]:
        time.sleep(0.05)
    refused(run, DataLossError, "(?!.*failOnDataLoss=false).*log ends at .*restored.*Start over", restarts=restarts)
    if restore is recover_to_a_new_timeline and fails:
        database.execute("UPDATE t SET v = repeat('x', 10000)")  # now the log is longer than it was
        refused(run, DataLossError, "timeline 1 .*on timeline 2.*failOnDataLoss=false", restarts=restarts)


@pytest.mark.parametrize("came_along", [True, False])
def test_without_failing_on_data_loss_a_slot_that_did_not_come_along_to_another_timeline_is_said(
    start_postgres: Callable[..., LocalServer],
    start_stream: StartStream,
    caplog: pytest.LogCaptureFixture,
    *,
    came_along: bool,
) -> None:
    server = start_postgres()
    database = Database(server, "postgres")
    table_of(database, 100)
    run = following(start_stream(database=database, failOnDataLoss="false"), "while the log is followed")
    run.stop()
    database.execute("UPDATE t SET v = 'not read yet' WHERE id = 1")
    server.stop()
    recover(server)
    server.start()
    while database.execute("SELECT pg_is_in_recovery()") == [(True,)]:
        time.sleep(0.05)
    if not came_along:
        database.execute("SELECT pg_drop_replication_slot(%s)", [run.slot])
    with caplog.at_level(logging.ERROR, "backfill"):
        run.catch_up()
    said = [record.getMessage() for record in caplog.records]
    assert "timeline 1" in said[0]
    assert len(said) == (1 if came_along else 2)
    assert came_along or f"slot {run.slot} does not exist any more" in said[1]
    assert (run.fold.rows[(1,)]["v"] == "not read yet") is came_along


def test_an_older_checkpoint_is_refused(database: Database, start_stream: StartStream) -> None:
    run = started(start_stream, "while the log is followed")
    run.catch_up()
    older = run.new_checkpoint()
    older.offsets, older.committed = run.offsets[:1], 1
    for round_ in range(3):
        database.execute(f"UPDATE t SET v = 'round {round_}'")
        run.catch_up()
    run.stop()
    with pytest.raises((StateError, DataLossError), match="older checkpoint"):
        older.catch_up()
    older.stop()


def held_back(database: Database, slot: str, place: str) -> int:
    """How many bytes of log lie behind this place of the slot."""
    ((size,),) = database.execute(
        f"SELECT pg_current_wal_insert_lsn() - {place} FROM pg_replication_slots WHERE slot_name = %s", [slot]
    )
    return int(size)


def test_the_log_of_other_tables_does_not_pile_up_behind_an_idle_one(
    database: Database, start_stream: StartStream
) -> None:
    run = started(start_stream, "while the log is followed")
    run.catch_up()
    # What autovacuum writes, and when, is its own affair.
    database.execute("CREATE TABLE busy (id int, filler text) WITH (autovacuum_enabled = false)")
    kept = []
    for round_ in range(4):
        for _ in range(5):
            database.execute("INSERT INTO busy SELECT %s, repeat('x', 1000) FROM generate_series(1, 4000)", [round_])
            # It tells the log which transactions run, which a slot needs to know to let go of what is older.
            database.execute("CHECKPOINT")
        before = dict(run.fold.rows)
        run.catch_up()
        assert run.fold.rows == before
        # Progress is recorded, and the log acknowledged, once in FOLLOW_INTERVAL; an idle stream is asked all the time.
        give_up = time.monotonic() + FOLLOW_INTERVAL + 30
        while held_back(database, run.slot, "confirmed_flush_lsn") > 16 << 20 and time.monotonic() < give_up:
            time.sleep(0.1)
            run.catch_up()
        kept.append(held_back(database, run.slot, "restart_lsn"))
    assert max(kept) <= 48 << 20
    database.execute("UPDATE t SET v = 'after all'")
    run.finish()


def test_an_idle_stream_makes_no_batches(database: Database, start_stream: StartStream) -> None:
    run = started(start_stream, "while the log is followed")
    run.catch_up()
    database.execute("CREATE TABLE other (id int); INSERT INTO other SELECT generate_series(1, 1000)")
    assert [run.batch() for _ in range(5)] == [False] * 5
    run.finish()


@AT_ANY_TIME
def test_a_stream_that_waits_for_changes_keeps_its_slot_where_idle_ones_are_invalidated(
    start_postgres: Callable[..., LocalServer], start_stream: StartStream, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    monkeypatch.setattr("backfill.upstream.postgres.epochs.LOOK_INTERVAL", 0.5)
    database = Database(start_postgres(), "postgres")
    require_version(database, 180_000, "idle_replication_slot_timeout")
    database.execute("ALTER SYSTEM SET idle_replication_slot_timeout = '5s'")
    database.execute("SELECT pg_reload_conf()")
    table_of(database, 100)
    run = following(start_stream(database=database, vnodeCount="4"), when)
    assert main(["pause", "--state-dir", run.options["stateDir"]]) == 0
    run.catch_up()
    waits = time.monotonic() + 7
    while time.monotonic() < waits:
        assert not run.batch()
        time.sleep(0.05)
    database.execute("CHECKPOINT")
    database.execute("UPDATE t SET v = 'not lost'")
    run.catch_up()
    assert main(["resume", "--state-dir", run.options["stateDir"]]) == 0
    run.finish()


def test_a_server_that_does_not_log_logically_is_refused_unless_only_a_snapshot_is_wanted(
    start_postgres: Callable[..., LocalServer], start_stream: StartStream
) -> None:
    database = Database(start_postgres(wal_level="replica"), "postgres")
    table_of(database, 100)
    run = start_stream(database=database)
    with pytest.raises(DatabaseSetupError, match="wal_level"):
        run.batch()
    run.stop()
    run = start_stream(database=database, startupMode="snapshot", stateDir=f"{run.options['stateDir']}-2")
    assert run.catch_up(10) == 1
    run.require_equal()
