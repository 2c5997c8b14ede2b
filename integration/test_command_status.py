"""`backfill status`, as it is called, beside a stream that reads a table."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from backfill.__main__ import main
from backfill.upstream.lag import Lag
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.stream_harness import StreamRun, table_of

if TYPE_CHECKING:
    from integration.fixtures.postgres import StartPostgres

ROWS = 400
LAG = {of.name for of in fields(Lag)}


@pytest.fixture
def run(database: Database, start_stream: StartStream) -> StreamRun:
    table_of(database, ROWS)
    return start_stream(vnodeCount="8", numPartitions="2")


def state(run: StreamRun) -> list[str]:
    return ["--state-dir", run.options["stateDir"]]


def look(run: StreamRun, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["status", *state(run), "--json", *arguments]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_status_follows_the_stream(run: StreamRun, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run.plan(100)
    assert look(run, capsys)["phase"] == "starting"
    url = run.database.url(tmp_path)
    seen = []
    while not run.backfilled if run.committed else True:
        run.batch(100)
        run.ask(100)  # Spark asks for the next one: now the last one is known to be committed, and recorded.
        seen.append(look(run, capsys, "--url", url))
        progress = run.barrier().progress
        assert (seen[-1]["snapshot_rows"], seen[-1]["vnodes"]) == (progress.row_count, progress.vnode_count)
        assert seen[-1]["table"] == '"public"."t"'
        assert seen[-1]["lag_bytes"] >= 0
        assert seen[-1]["lag_seconds"] >= 0
        assert seen[-1]["retained_bytes"] > 0
    assert [found["phase"] for found in seen] == ["snapshot"] * (len(seen) - 1) + ["changes"]
    assert (seen[-1]["snapshot_rows"], seen[-1]["vnodes_completed"]) == (ROWS, seen[-1]["vnodes"])


def test_how_far_it_is_behind_is_since_it_was_known_to_have_everything(
    run: StreamRun, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Not since the last change: where nothing happens to a table, a stream that looks is not behind."""
    run.batch()
    run.catch_up()
    run.database.execute("UPDATE t SET v = 'changed' WHERE id < 4")
    run.batch()
    run.database.execute("CREATE TABLE other (id int)")
    run.database.execute("SELECT pg_sleep(2.1)")
    run.ask()
    behind = run.stream().report()["lag_seconds"]
    reported = run.upstream.lag_of(run.barrier().bookmark, run.barrier().epoch).figures()
    assert isinstance(behind, int)
    assert int(reported["lag_seconds"]) > behind
    found = look(run, capsys, "--url", run.database.url(tmp_path))
    reported = run.upstream.lag_of(run.barrier().bookmark, run.barrier().epoch).figures()
    assert int(reported["lag_seconds"]) > found["lag_seconds"] >= behind
    assert (found["changes_passed_on"], found["changes_held_back"]) == (3, 0)
    (run.folder / "state" / "counts.json").write_text("{")
    found = look(run, capsys, "--url", run.database.url(tmp_path))
    assert found["lag_seconds"] >= int(reported["lag_seconds"])
    assert "changes_passed_on" not in found


def test_a_moment_to_which_the_clock_of_the_server_has_not_come_yet_does_not_say_how_far_it_is_behind(
    run: StreamRun,
) -> None:
    """After a clock was set back, a stream that nobody runs would seem not to be behind until it is that late again."""
    run.batch()
    run.database.execute("UPDATE t SET v = 'changed'")
    barrier = run.barrier()
    tomorrow = replace(barrier.epoch, timestamp=barrier.epoch.timestamp + 86_400_000_000)
    reported = run.upstream.lag_of(barrier.bookmark, tomorrow)
    assert (reported.complete_until, reported.lag_seconds) == (None, None)
    assert reported.lag_bytes


def test_of_a_backlog_that_is_cut_the_last_commit_that_was_read_counts(run: StreamRun) -> None:
    run.batch(20)
    for step in range(3):
        run.database.execute(f"UPDATE t SET v = v || '+' WHERE id <= 20 AND {step} >= 0")
        run.database.execute("SELECT pg_sleep(1.1)")
    run.ask(20)
    assert int(run.stream().report()["lag_seconds"]) >= 2
    assert run.plan(20)
    behind = int(run.stream().report()["lag_seconds"])
    run.catch_up(1000)
    run.ask()
    assert behind >= 2


def test_the_last_batch_of_a_backlog_says_that_it_is_read(run: StreamRun) -> None:
    """It may be the last batch for hours, so it does not repeat what was found a moment ago for the batch before it."""
    run.catch_up()
    run.database.execute("CREATE TABLE other (id int)")
    assert not run.plan()
    run.database.execute("UPDATE t SET v = 'one'; SELECT pg_sleep(1.1)")
    run.database.execute("UPDATE t SET v = 'two'")
    assert run.batch(ROWS)
    cut = run.stream().report()
    assert run.batch(ROWS)
    whole = run.stream().report()
    assert not run.plan()
    assert int(cut["lag_bytes"]) > int(whole["lag_bytes"])
    assert str(cut["complete_until"]) < str(whole["complete_until"])


def test_a_run_that_finds_itself_at_the_present_is_not_behind_by_the_whole_log(run: StreamRun) -> None:
    run.catch_up()
    run.database.execute("UPDATE t SET v = 'changed' WHERE id = 1")
    run.batch()
    run.restart()
    run.stream().stop_at_present()
    assert not run.plan()
    assert int(run.stream().report()["lag_bytes"]) < 1 << 20


def test_while_nothing_at_all_is_written_a_stream_that_does_not_run_is_not_behind(run: StreamRun) -> None:
    """Now and then the server writes a few bytes by itself; after that the stream reads once more."""

    def an_hour_later() -> Lag:
        barrier = run.barrier()
        return run.upstream.lag_of(
            barrier.bookmark, replace(barrier.epoch, timestamp=barrier.epoch.timestamp - 3_600_000_000)
        )

    run.batch()
    while (found := an_hour_later()).lag_bytes:
        run.database.execute("UPDATE t SET v = v || '+' WHERE id = 1")
        run.batch()
    assert found.lag_seconds == 0
    run.database.execute("CREATE TABLE other (id int)")
    assert int(an_hour_later().lag_seconds or 0) >= 3600


def test_a_database_that_is_away_is_reported_and_is_no_error(
    run: StreamRun, capsys: pytest.CaptureFixture[str]
) -> None:
    run.batch(100)
    run.ask()
    found = look(run, capsys, "--url", "postgresql://nobody@127.0.0.1:1/none")
    assert found["unreachable"].startswith("no connection to the database")
    assert found["snapshot_rows"] == 100
    assert main(["status", *state(run)]) == 0
    assert '"public"."t"  stream' in capsys.readouterr().out


def test_of_another_server_there_are_no_figures(
    run: StreamRun, capsys: pytest.CaptureFixture[str], tmp_path: Path, start_postgres: StartPostgres
) -> None:
    """Not even where the other server has a slot of the same name."""
    run.batch(100)
    run.ask()
    other = Database(start_postgres(), "postgres")
    other.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [run.slot])
    found = look(run, capsys, "--url", other.url(tmp_path))
    assert "and this server is system" in found["unreachable"]
    assert not found.keys() & LAG


def test_that_the_slot_is_gone_is_reported(run: StreamRun, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    url = ("--url", run.database.url(tmp_path))
    run.batch(100)
    run.ask(100)
    run.database.execute("SELECT pg_drop_replication_slot(%s)", [run.slot])
    gone = f"replication slot {run.slot} no longer exists; the changes after"
    found = look(run, capsys, *url)
    assert gone in found["unreachable"]
    assert not found.keys() & LAG
    assert main(["status", *state(run), *url]) == 0
    assert gone in capsys.readouterr().out.replace("\n", " ")


def test_before_the_first_barrier_a_slot_may_not_be_there_yet(
    run: StreamRun, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run.plan(100)
    run.database.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()"
    )
    found = look(run, capsys, "--url", run.database.url(tmp_path))
    assert (found["phase"], found.keys() & (LAG | {"unreachable"})) == ("starting", set())


def test_a_snapshot_alone_has_no_slot_and_is_not_behind(
    database: Database, start_stream: StartStream, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table_of(database, 10)
    run = start_stream(startupMode="snapshot")
    run.catch_up()
    run.ask()
    found = look(run, capsys, "--url", database.url(tmp_path))
    assert found["snapshot_rows"] == 10
    assert not found.keys() & (LAG | {"unreachable"})


def test_what_is_no_url_is_refused(run: StreamRun, capsys: pytest.CaptureFixture[str]) -> None:
    run.batch(100)
    assert main(["status", *state(run), "--url", "nonsense"]) == 1
    assert "url cannot be used; expected a URI" in capsys.readouterr().err


def test_a_folder_without_a_stream_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--state-dir", str(tmp_path)]) == 1
    assert "expected the stateDir of a stream" in capsys.readouterr().err


def test_watching_does_not_disturb_the_stream(run: StreamRun, tmp_path: Path) -> None:
    """The stream goes from batch to batch while somebody looks; each look is of a barrier, and none goes back."""
    run.batch(20)
    command = [sys.executable, "-m", "backfill", "status", "--watch", "--json", *state(run)]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as watcher:
        assert watcher.stdout is not None
        lines = [watcher.stdout.readline()]
        while run.batch(20):
            pass
        while json.loads(lines[-1])["snapshot_rows"] < ROWS:
            lines.append(watcher.stdout.readline())
        watcher.terminate()
        lines += watcher.stdout.read().splitlines()
        assert watcher.wait() == 0
    rows = [json.loads(line)["snapshot_rows"] for line in lines]
    assert rows == sorted(rows)
    assert list(temporary.iterdir()) == []
    run.finish()


def test_in_a_terminal_it_is_drawn_in_place_and_in_colours(run: StreamRun) -> None:
    run.batch(100)
    run.ask()
    ours, its = pty.openpty()
    command = [sys.executable, "-m", "backfill", "status", "--watch", *state(run)]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8", "COLUMNS": "50"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(command, stdout=its, env=environment) as watcher:
        text = b""
        while text.count(b"\x1b[H") < 2:
            text += os.read(ours, 4096)
        watcher.send_signal(signal.SIGINT)
        assert watcher.wait() == 0
    os.close(ours)
    os.close(its)
    first = text.split(b"\x1b[H")[1].decode()
    assert "phase snapshot, 100 rows read" in first
    assert "\x1b[32m█" in first
