"""Publication and slot when drivers die while the server still makes them; what the slot keeps, and what it lets go."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from backfill.upstream.postgres.position import Position
from integration.crash.lives import Lives
from integration.crash.oracle import confirmed_lsn
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.stream_harness import StreamRun
from integration.waiting import eventually
from integration.writers import BIGINT, TABLE

SIZE = 300
PATIENCE = 120.0
"""Seconds for what takes one or two where nobody else uses the machine."""


def a_stream(database: Database, folder: Path) -> Lives:
    BIGINT.create(database, SIZE, identity="DEFAULT")
    database.execute("CREATE TABLE other (id int)")
    return Lives(database, folder, BIGINT, vnodeCount="3", numPartitions="2", maxBytesPerTrigger="3000")


def write(database: Database, note: str) -> None:
    database.execute(
        f"UPDATE {TABLE} SET note = '{note}' WHERE id % 3 = 0;"
        f"DELETE FROM {TABLE} WHERE id = (SELECT min(id) FROM {TABLE});"
        f"INSERT INTO {TABLE} (note, balance, id) SELECT '{note}', 0, max(id) + 1 FROM {TABLE}"
    )


def test_a_slot_that_was_being_made_when_the_driver_died_is_made_by_the_next(
    database: Database, tmp_path: Path
) -> None:
    lives = a_stream(database, tmp_path)
    making = "SELECT 1 FROM pg_replication_slots WHERE database = current_database() AND confirmed_flush_lsn IS NULL"
    with database.connect() as writer:
        writer.execute("INSERT INTO other VALUES (1)")  # the slot waits for this transaction
        lives.start(until_idle=True)
        eventually(lambda: bool(database.execute(making)))
        lives.kill()
        write(database, "after the first death")
        lives.start(until_idle=True)
        lives.wait_a_little(1.0)
        write(database, "while the second driver waits")
        writer.commit()
    assert lives.wait_a_little(PATIENCE) == 0, lives.end_of_output()
    write(database, "later")
    lives.finish()
    ((slots,),) = database.execute("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()")
    assert slots == 1


def test_a_publication_that_was_being_made_when_the_driver_died_is_taken_over(
    database: Database, tmp_path: Path
) -> None:
    lives = a_stream(database, tmp_path)
    waiting = (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
        "AND query LIKE 'LOCK TABLE %' AND wait_event_type = 'Lock'"
    )
    with database.connect() as analyst:
        analyst.execute(f"LOCK TABLE {TABLE} IN SHARE UPDATE EXCLUSIVE MODE")  # as VACUUM and ANALYZE do
        lives.start(until_idle=True)
        eventually(lambda: len(database.execute(waiting)) == 1)
        first = database.execute(waiting)
        lives.kill()
        write(database, "after the first death")
        lives.start(until_idle=True)
        # The session of the first one ends when the server looks whether its client is there, within 10 s.
        eventually(lambda: not set(database.execute(waiting)) <= set(first))
        write(database, "while the second driver waits")
        analyst.commit()
    assert lives.wait_a_little(PATIENCE) == 0, lives.end_of_output()
    write(database, "later")
    lives.finish()


def test_a_slot_that_the_session_of_a_dead_driver_still_reads_is_waited_for(
    database: Database, start_stream: StartStream
) -> None:
    BIGINT.create(database, SIZE, identity="DEFAULT")
    run = start_stream(TABLE, select=BIGINT.select)
    run.catch_up()
    write(database, "something to read")
    reader = psycopg.connect(make_conninfo(database.dsn, replication="database"), autocommit=True)
    options = f"proto_version '1', publication_names '{run.slot}'"
    result = reader.pgconn.exec_(f"START_REPLICATION SLOT {run.slot} LOGICAL 0/0 ({options})".encode())
    assert result.status == psycopg.pq.ExecStatus.COPY_BOTH
    began = time.monotonic()
    threading.Timer(1.0, reader.close).start()
    run.finish()
    assert time.monotonic() - began >= 1.0


def confirmed(run: StreamRun) -> int:
    with run.database.connect(autocommit=True) as connection:
        found = confirmed_lsn(connection, run.slot)
    assert found is not None
    return found


def restart_lsn(run: StreamRun) -> int:
    """Where the log begins that the server keeps for the slot."""
    query = "SELECT (restart_lsn - '0/0')::bigint FROM pg_replication_slots WHERE slot_name = %s"
    ((lsn,),) = run.database.execute(query, [run.slot])
    return int(lsn)


def busy(database: Database, megabytes: int) -> None:
    """Writes to another table, and has the server log which transactions run, as it does every few seconds."""
    for _ in range(megabytes):
        database.execute("INSERT INTO other SELECT i FROM generate_series(1, 16000) i")
    database.execute("CHECKPOINT")


def test_an_idle_table_on_a_busy_server_does_not_hold_back_the_log(
    database: Database, start_stream: StartStream
) -> None:
    BIGINT.create(database, SIZE, identity="DEFAULT")
    database.execute("CREATE TABLE other (id int)")
    run = start_stream(TABLE, select=BIGINT.select)
    run.catch_up()
    begun = []
    for _ in range(3):
        begun.append(confirmed(run))
        busy(database, 20)
        run.catch_up()
        time.sleep(1.1)  # while only changes are followed, progress is recorded once a second
        run.catch_up()
        assert confirmed(run) > begun[-1] + (16 << 20), "the slot has not followed"
    # Not how many bytes are kept: the server may write as many by itself, and holds the log back by a round.
    assert restart_lsn(run) > begun[1]
    run.finish()


def test_the_slot_follows_while_an_idle_table_is_back_filled_on_a_busy_server(
    database: Database, start_stream: StartStream
) -> None:
    BIGINT.create(database, SIZE, identity="DEFAULT")
    database.execute("CREATE TABLE other (id int)")
    run = start_stream(TABLE, select=BIGINT.select, vnodeCount="2", maxBytesPerTrigger="1000")
    for _ in range(5):
        run.batch(1000)
        busy(database, 2)
    assert not run.backfilled
    committed = Position.parse(run.barrier().epoch.position).lsn
    run.plan(1000)
    assert committed - (1 << 20) < confirmed(run) <= committed
    run.restart(maxBytesPerTrigger="1g")
    run.finish()


def test_nothing_is_acknowledged_before_it_is_committed(database: Database, start_stream: StartStream) -> None:
    BIGINT.create(database, SIZE, identity="DEFAULT")
    run = start_stream(TABLE, select=BIGINT.select, vnodeCount="2", maxBytesPerTrigger="1000")
    run.batch(1000)
    for number in range(10):
        before = confirmed(run)
        write(database, f"number {number}")
        run.plan(1000)
        committed = Position.parse(run.barrier().epoch.position).lsn
        assert before <= confirmed(run) <= committed
        planned = confirmed(run)
        rows = run.read()
        assert confirmed(run) == planned, "something was acknowledged while the batch was read"
        if number % 3 == 0:
            run.stop()
            assert run.read() == rows  # by a new process, and still not committed
            assert confirmed(run) == planned
        run.commit(rows)
    run.finish()


def test_a_prepared_transaction_that_the_slot_waits_for_is_named(
    database: Database, start_stream: StartStream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It has no process whose number could be named."""
    monkeypatch.setattr("backfill.upstream.postgres.replication.blockers.SAY_AFTER", 0.05)
    BIGINT.create(database, SIZE, identity="DEFAULT")
    gid = f"{database.name} it's"
    with database.connect(autocommit=True) as writer:
        writer.execute("CREATE TABLE other (id int)")
        writer.execute("BEGIN; INSERT INTO other VALUES (1)")
        writer.execute(sql.SQL("PREPARE TRANSACTION {}").format(gid))
        run = start_stream(TABLE, key=BIGINT.sink_key)
        beginning = threading.Thread(target=run.batch, daemon=True)
        with caplog.at_level("WARNING", "backfill"):
            beginning.start()
            named = gid.replace("'", "''")
            eventually(
                lambda: any(
                    f"prepared and neither committed nor rolled back: '{named}'" in each for each in caplog.messages
                )
            )
        writer.execute(sql.SQL("COMMIT PREPARED {}").format(gid))
    beginning.join(PATIENCE)
    assert not beginning.is_alive()
    run.stop()
