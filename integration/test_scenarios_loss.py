"""Somebody drops, moves or loses the slot: the stream ends before it emits anything with a gap in it."""

from __future__ import annotations

import logging
import re
import subprocess
from pathlib import Path

import pytest

from backfill.__main__ import main
from backfill.errors import DatabaseSetupError, DataLossError, DefiniteError
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.processes import kill
from integration.scenarios import AT_ANY_TIME, RESTARTS, refused, started
from integration.servers.local import LocalServer
from integration.stream_harness import table_of
from integration.waiting import eventually, logged


@RESTARTS
@AT_ANY_TIME
def test_a_dropped_slot_ends_the_stream(
    database: Database, start_stream: StartStream, when: str, *, restarts: bool
) -> None:
    run = started(start_stream, when)
    database.execute("SELECT pg_drop_replication_slot(%s)", [run.slot])
    database.execute("UPDATE t SET v = 'lost' WHERE id < 20")
    refused(run, DataLossError, "no longer exists.*failOnDataLoss=false", restarts=restarts)


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
    refused(run, DataLossError, "somebody advanced the slot", restarts=restarts)


@RESTARTS
def test_a_slot_of_another_plugin_under_the_same_name_is_not_read(
    database: Database, start_stream: StartStream, *, restarts: bool
) -> None:
    run = started(start_stream, "while the log is followed")
    database.execute("SELECT pg_drop_replication_slot(%s)", [run.slot])
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", [run.slot])
    database.execute("UPDATE t SET v = 'lost' WHERE id < 20")
    refused(run, DefiniteError, "test_decoding|proto_version", restarts=restarts)


@pytest.mark.parametrize(
    ("making", "kind"),
    [
        ("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", "uses test_decoding and not pgoutput"),
        ("SELECT pg_create_physical_replication_slot(%s)", "is a physical one"),
    ],
)
def test_the_advice_for_a_slot_of_another_kind_leads_out(
    database: Database, start_stream: StartStream, making: str, kind: str
) -> None:
    run = started(start_stream, "while the log is followed")
    database.execute("SELECT pg_drop_replication_slot(%s)", [run.slot])
    database.execute(making, [run.slot])
    run.restart()
    with pytest.raises(DataLossError, match=rf"{kind}.*failOnDataLoss=false") as refusal:
        run.catch_up()
    _follow(database, refusal.value)
    run.restart(failOnDataLoss="false")
    run.catch_up()
    database.execute("UPDATE t SET v = 'new'")
    run.finish()


def test_a_physical_slot_under_the_same_name_is_not_dropped_with_the_stream(
    database: Database, start_stream: StartStream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = started(start_stream, "while the log is followed")
    database.execute("SELECT pg_drop_replication_slot(%s)", [run.slot])
    database.execute("SELECT pg_create_physical_replication_slot(%s)", [run.slot])
    run.stop()
    drop = ["drop", "--state-dir", run.options["stateDir"], "--url", database.url(tmp_path)]
    assert main(drop) == 1
    assert f"replication slot {run.slot} is a physical one" in capsys.readouterr().err
    new = run.new_checkpoint()
    new.restart(onExistingState="restart")
    with pytest.raises(DatabaseSetupError, match=r"is a physical one.*nothing was dropped") as refusal:
        new.catch_up()
    _follow(database, refusal.value)
    new.finish()
    assert main(drop) == 0


def test_a_standby_of_a_physical_slot_is_not_disconnected_by_a_stream_that_begins(
    own_database: tuple[LocalServer, Database], start_stream: StartStream, tmp_path: Path
) -> None:
    server, database = own_database
    table_of(database, 10)
    database.execute("SELECT pg_create_physical_replication_slot('taken')")
    reads = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = 'taken' AND active"
    receiving = subprocess.Popen([server.bin("pg_receivewal"), "-D", tmp_path, "-S", "taken", "-d", server.dsn])
    try:
        eventually(lambda: database.execute(reads) != [])
        (before,) = database.execute(reads)
        run = start_stream(database=database, slotName="taken")
        with pytest.raises(DatabaseSetupError, match=r"taken exists and is a physical one.*choose another slotName"):
            run.catch_up()
        assert database.execute(reads) == [before]
    finally:
        kill(receiving)


def _follow(database: Database, refusal: Exception) -> None:
    """Does what the error advises about the slot."""
    (advice,) = re.findall(r"SELECT pg_drop_replication_slot\('\w+'\)", str(refusal))
    database.execute(advice)


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
def test_without_failing_on_data_loss_a_slot_that_was_moved_is_reported_once(
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
    (warning,) = logged(caplog)
    assert "somebody advanced the slot or made it again" in warning


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
