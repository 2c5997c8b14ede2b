"""Another server, or an earlier state of the same, answers: a stream does not take it for the one that it followed."""

from __future__ import annotations

import logging
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from backfill.__main__ import main
from backfill.errors import DatabaseSetupError, DataLossError, StateError
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.scenarios import AT_ANY_TIME, RESTARTS, following, refused, started
from integration.servers import LocalServer
from integration.stream_harness import StreamRun, churn, table_of
from integration.waiting import eventually, logged


def test_another_database_system_behind_the_url_is_not_taken_for_the_old_one(
    start_postgres: Callable[..., LocalServer], start_stream: StartStream
) -> None:
    run = started(start_stream, "while the log is followed")
    other = Database(start_postgres(), "postgres")
    table_of(other, 100)
    run.restart(**other.options)
    with pytest.raises((DataLossError, StateError), match=r"followed system \d+, and the options lead to system \d+"):
        run.catch_up()


def test_a_server_whose_log_was_put_where_no_bigint_reaches_is_refused(
    start_postgres: Callable[..., LocalServer], start_stream: StartStream, tmp_path: Path
) -> None:
    server = start_postgres()
    database = Database(server, "postgres")
    table_of(database, 10)
    server.stop()
    server._site.sandbox.run([server.bin("pg_resetwal"), "-l", "000000018000000000000001", server.folder / "data"])
    server.start()
    for mode in ("initial", "snapshot"):
        run = start_stream(**database.options, startupMode=mode, stateDir=str(tmp_path / mode))
        with pytest.raises(DatabaseSetupError, match="later LSNs do not fit into _commit_version"):
            run.batch()
    assert database.execute("SELECT slot_name FROM pg_replication_slots") == []
    assert main(["doctor", "--url", database.url(tmp_path), "--dbtable", "t"]) == 1


@pytest.mark.parametrize("way", ["over", "on"])
@pytest.mark.parametrize("begun", [False, True], ids=["with a given slot", "in the log"])
def test_a_slot_whose_log_the_server_has_lost_is_reported_with_the_ways_out(
    own_database: tuple[LocalServer, Database], start_stream: StartStream, way: str, *, begun: bool
) -> None:
    server, database = own_database
    table_of(database, 40)
    run = start_stream(database=database, slotName="s")
    if begun:
        run.catch_up()
    else:
        database.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
    server.stop()
    server._site.sandbox.run([server.bin("pg_resetwal"), server.folder / "data"])
    server.start()
    run.restart()
    with pytest.raises(DatabaseSetupError, match=r"lacks a file .* onExistingState=restart; or run SELECT pg_drop_rep"):
        run.catch_up()
    if way == "over":
        run.stop()
        run = run.new_checkpoint()
        run.restart(onExistingState="restart")
    else:
        database.execute("SELECT pg_drop_replication_slot('s')")
        run.restart(failOnDataLoss="false")
    run.catch_up()
    churn(database, 1)
    run.finish()


def test_a_stream_is_not_ended_on_another_database_system(
    start_postgres: Callable[..., LocalServer],
    start_stream: StartStream,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Not even where the other has a slot of the same name, which is then another stream's."""
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
    assert f"replication slot {run.slot} belongs to system" in capsys.readouterr().err
    assert other.execute(slots) == [(run.slot,)]
    run.restart()
    run.finish()
    run.stop()
    assert main([*drop, run.database.url(tmp_path)]) == 0
    assert run.database.execute(slots) == []


def copied(
    start_postgres: Callable[..., LocalServer], start_stream: StartStream, copy: Path, when: str, *, fails: bool
) -> tuple[StreamRun, LocalServer]:
    """A stream of a server whose files are copied as they are by then."""
    server = start_postgres()
    database = Database(server, "postgres")
    table_of(database, 100)
    options = {"vnodeCount": "4", "numPartitions": "2", "failOnDataLoss": str(fails).lower()}
    run = following(start_stream(database=database, **options), when)
    server.stop()
    subprocess.run(["cp", "-a", server.folder / "data", copy], check=True)
    server.start()
    return run, server


def put_back(server: LocalServer, copy: Path) -> None:
    server.stop()
    data = server.folder / "data"
    shutil.rmtree(data)
    subprocess.run(["cp", "-a", copy, data], check=True)


def recover_to_a_new_timeline(server: LocalServer, copy: Path) -> None:
    put_back(server, copy)
    recover(server)


def recover(server: LocalServer) -> None:
    """Has the server start on a new timeline, as after a recovery to a point in time or the promotion of a standby."""
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
    """While its log is shorter failOnDataLoss does not matter: what is new would lie where the stream has been."""
    run, server = copied(start_postgres, start_stream, tmp_path / "copy", when, fails=fails)
    database = run.database
    database.execute("UPDATE t SET v = 'undone' WHERE id < 20")
    run.batch(30)
    restore(server, tmp_path / "copy")
    server.start()
    eventually(lambda: database.execute("SELECT pg_is_in_recovery()") == [(False,)])
    refused(run, DataLossError, r"\A(?!.*failOnDataLoss=false).*log ends at .*restored.*Start over", restarts=restarts)
    if restore is recover_to_a_new_timeline:
        database.execute("UPDATE t SET v = repeat('x', 10000)")  # now the log is longer than it was
        refused(run, DataLossError, r"\A(?!.*failOnDataLoss=false).*timeline 1.*on timeline 2", restarts=restarts)


@AT_ANY_TIME
@pytest.mark.parametrize("fails", [True, False], ids=["failing", "going on"])
def test_a_batch_whose_log_was_taken_away_by_a_restore_is_not_run_again_without_it(
    start_postgres: Callable[..., LocalServer], start_stream: StartStream, tmp_path: Path, when: str, *, fails: bool
) -> None:
    """The log is as long as at the last commit and ends before the batch that was logged after it."""
    run, server = copied(start_postgres, start_stream, tmp_path / "copy", when, fails=fails)
    run.database.execute("UPDATE t SET v = 'undone' WHERE id < 20")
    assert run.plan(30)
    assert run.read()
    run.stop()
    put_back(server, tmp_path / "copy")
    server.start()
    with pytest.raises(DataLossError, match=r"the log was read up to .*this server's log ends at .*restored"):
        run.read()
    run.stop()


def test_a_state_that_a_chunk_was_read_at_later_than_planned_is_not_forgotten(
    start_postgres: Callable[..., LocalServer], start_stream: StartStream, tmp_path: Path
) -> None:
    """The log ends behind the batch, and before the state at which a part of it was read after a crash."""
    server = start_postgres()
    run = start_stream(database=Database(server, "postgres"), vnodeCount="4", numPartitions="2")
    table_of(run.database, 100)
    run.batch(30)
    assert run.plan(30)
    run.stop()
    server.stop()
    subprocess.run(["cp", "-a", server.folder / "data", tmp_path / "copy"], check=True)
    server.start()
    for _ in range(5):
        run.database.execute("UPDATE t SET v = v || ', undone'")
    run.commit(run.read())
    put_back(server, tmp_path / "copy")
    server.start()
    refused(run, DataLossError, r"the log was read up to .*this server's log ends at .*restored", restarts=False)


@pytest.mark.parametrize("came_along", [True, False])
def test_without_failing_on_data_loss_a_slot_that_did_not_come_along_to_another_timeline_is_reported(
    own_database: tuple[LocalServer, Database],
    start_stream: StartStream,
    caplog: pytest.LogCaptureFixture,
    *,
    came_along: bool,
) -> None:
    server, database = own_database
    table_of(database, 100)
    run = following(start_stream(database=database, failOnDataLoss="false"), "while the log is followed")
    run.stop()
    database.execute("UPDATE t SET v = 'not read yet' WHERE id = 1")
    server.stop()
    recover(server)
    server.start()
    eventually(lambda: database.execute("SELECT pg_is_in_recovery()") == [(False,)])
    if not came_along:
        database.execute("SELECT pg_drop_replication_slot(%s)", [run.slot])
    with caplog.at_level(logging.ERROR, "backfill"):
        run.catch_up()
    warnings = logged(caplog)
    assert "timeline 1" in warnings[0]
    assert len(warnings) == (1 if came_along else 2)
    assert came_along or f"slot {run.slot} no longer exists" in warnings[1]
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
