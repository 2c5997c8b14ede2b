"""Somebody drops, moves or loses what the stream depends on: it ends before it emits anything with a gap in it."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from backfill.__main__ import main
from backfill.errors import DatabaseSetupError, DataLossError, DefiniteError
from backfill.state_dir.record import FOLLOW_INTERVAL
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.scenarios import AT_ANY_TIME, RESTARTS, following, refused, started
from integration.servers import LocalServer
from integration.stream_harness import table_of
from integration.versions import require_version
from integration.waiting import eventually


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


def test_the_advice_for_a_slot_of_another_plugin_leads_out(database: Database, start_stream: StartStream) -> None:
    run = started(start_stream, "while the log is followed")
    database.execute("SELECT pg_drop_replication_slot(%s)", [run.slot])
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", [run.slot])
    run.restart()
    with pytest.raises(DataLossError, match=r"uses test_decoding and not pgoutput.*failOnDataLoss=false") as told:
        run.catch_up()
    (advice,) = re.findall(r"SELECT pg_drop_replication_slot\('\w+'\)", str(told.value))
    database.execute(advice)
    run.restart(failOnDataLoss="false")
    run.catch_up()
    database.execute("UPDATE t SET v = 'new'")
    run.finish()


@RESTARTS
@AT_ANY_TIME
def test_without_failing_on_data_loss_the_stream_goes_on_behind_the_gap(
    database: Database, start_stream: StartStream, when: str, caplog: pytest.LogCaptureFixture, *, restarts: bool
) -> None:
    run = started(start_stream, when, failOnDataLoss="false")
    database.execute("SELECT pg_drop_replication_slot(%s)", [run.slot])
    database.execute("UPDATE t SET v = 'lost' WHERE id = 1; UPDATE t SET v = 'lost' WHERE id = 100")
    if restarts:
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


@pytest.mark.parametrize("phase", ["following", "held", "up to the present", "at the present"])
def test_a_gap_that_was_passed_is_behind_the_stream_before_anything_changes(
    database: Database, start_stream: StartStream, phase: str
) -> None:
    held = phase == "held"
    when = "in the middle of the backfill" if held else "while the log is followed"
    run = started(start_stream, when, failOnDataLoss="false")
    if held:
        assert main(["pause", "--state-dir", run.options["stateDir"]]) == 0
    run.catch_up(30)
    database.execute("SELECT pg_drop_replication_slot(%s)", [run.slot])
    if phase != "at the present":
        database.execute("UPDATE t SET v = 'lost' WHERE id = 1")
    run.restart()
    if phase.endswith("the present"):
        run.stream().stop_at_present()  # before the new slot is made, which lies behind it
    assert run.batch(30)
    assert not run.batch(30)
    run.restart(failOnDataLoss="true")
    assert not run.batch(30)


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


def test_a_plan_that_nobody_logged_hides_no_change_from_smaller_batches(
    database: Database, start_stream: StartStream
) -> None:
    run = started(start_stream, "while the log is followed")
    run.catch_up()
    database.execute("UPDATE t SET v = 'one' WHERE id = 1")
    for number in range(2, 6):
        database.execute(f"UPDATE t SET v = 'one' WHERE id = {number}")
    assert run.plan(None, logged=False)
    while run.batch(2):
        pass
    run.require_equal()


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


def test_a_server_that_does_not_log_logically_begins_to_with_the_slot_where_it_can(
    start_postgres: Callable[..., LocalServer], start_stream: StartStream
) -> None:
    database = Database(start_postgres(wal_level="replica"), "postgres")
    table_of(database, 100)
    run = start_stream(database=database)
    if database.server.version < 190_000:
        with pytest.raises(DatabaseSetupError, match="wal_level is replica, expected logical"):
            run.batch()
        return
    with database.connect() as writer, ThreadPoolExecutor() as threads:
        writer.execute("UPDATE t SET v = 'begun before the slot' WHERE id < 20")
        begun = threads.submit(run.judged_batch, 20)
        eventually(lambda: begun.done() or bool(database.execute("SELECT slot_name FROM pg_replication_slots")))
        writer.execute("UPDATE t SET v = 'then ended' WHERE id > 80")
        writer.commit()
        assert begun.result()
    database.execute("UPDATE t SET v = 'after it' WHERE id % 3 = 0; DELETE FROM t WHERE id % 7 = 0")
    run.backfill(20)
    run.restart()
    run.finish()


def test_a_server_that_does_not_log_logically_is_refused_unless_only_a_snapshot_is_wanted(
    start_postgres: Callable[..., LocalServer], start_stream: StartStream
) -> None:
    database = Database(start_postgres(wal_level="minimal", max_wal_senders="0"), "postgres")
    table_of(database, 100)
    run = start_stream(database=database)
    with pytest.raises(DatabaseSetupError, match="wal_level is minimal, expected logical"):
        run.batch()
    run.stop()
    run = start_stream(database=database, startupMode="snapshot", stateDir=f"{run.options['stateDir']}-2")
    assert run.catch_up(10) == 1
    run.require_equal()
