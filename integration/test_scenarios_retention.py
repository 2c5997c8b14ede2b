"""What a slot holds back of the log, for how long the server lets it, and a server that logs too little for one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from backfill.__main__ import main
from backfill.errors import DatabaseSetupError, DataLossError
from backfill.state_dir.record import FOLLOW_INTERVAL
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.scenarios import AT_ANY_TIME, KEEPS_LITTLE, RESTARTS, following, invalidate, refused, started
from integration.servers import LocalServer
from integration.stream_harness import table_of
from integration.versions import require_version
from integration.waiting import eventually


@RESTARTS
@pytest.mark.parametrize("fails", [True, False], ids=["failing", "going on"])
def test_a_slot_that_held_back_too_much_and_was_invalidated(
    start_postgres: Callable[..., LocalServer],
    start_stream: StartStream,
    *,
    restarts: bool,
    fails: bool,
) -> None:
    server = start_postgres(**KEEPS_LITTLE)
    database = Database(server, "postgres")
    table_of(database, 100)
    run = following(start_stream(database=database, failOnDataLoss=str(fails).lower()), "while the log is followed")
    database.execute("UPDATE t SET v = 'lost' WHERE id = 1")
    invalidate(database)
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


@pytest.mark.parametrize("slot", ["", "mine"], ids=["made by the stream", "made by a person"])
def test_a_slot_that_was_invalidated_before_anything_was_read_is_made_again(
    start_postgres: Callable[..., LocalServer],
    start_stream: StartStream,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    slot: str,
) -> None:
    """Otherwise the stream would first read rows whose changes are lost by the time that it notices."""
    database = Database(start_postgres(**KEEPS_LITTLE), "postgres")
    table_of(database, 100)
    run = start_stream(database=database, **({"slotName": slot} if slot else {}))
    if slot:
        database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
    else:
        run.ask(20)
        run.stop()
    invalidate(database)
    if not slot:
        given = ["--state-dir", run.options["stateDir"], "--url", run.options["url"]]
        assert main(["status", *given, "--json"]) == 0
        assert "was invalidated (wal_status=lost" in json.loads(capsys.readouterr().out)["unreachable"]
    assert run.judged_batch(20)
    assert "and is made again" in caplog.text
    database.execute("UPDATE t SET v = 'changed' WHERE id % 2 = 0")
    run.finish()


def test_a_role_that_may_not_make_a_lost_slot_again_is_told_the_statement_that_lets_it(
    start_postgres: Callable[..., LocalServer], start_stream: StartStream, caplog: pytest.LogCaptureFixture
) -> None:
    database = Database(start_postgres(**KEEPS_LITTLE), "postgres")
    table_of(database, 20)
    database.execute("CREATE ROLE app; ALTER TABLE t OWNER TO app; GRANT CREATE ON DATABASE postgres TO app")
    database.execute("SELECT pg_create_logical_replication_slot('mine', 'pgoutput')")
    invalidate(database)
    run = start_stream(database=database, slotName="mine", sessionInitStatement="SET ROLE app")
    with pytest.raises(DatabaseSetupError, match=r'let an administrator run ALTER ROLE "app" REPLICATION$'):
        run.batch()
    assert "is made again" not in caplog.text
    database.execute("ALTER ROLE app REPLICATION")
    run.restart()
    run.finish()


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
    monkeypatch.setattr("backfill.upstream.postgres.epochs.reading.LOOK_INTERVAL", 0.5)
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
