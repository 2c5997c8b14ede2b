"""`backfill pause`, `resume` and `throttle` beside a real stream."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from backfill.__main__ import main
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.servers.address import as_uri
from integration.stream_harness import StreamRun, table_of
from integration.waiting import eventually

PATIENT = (
    "import sys; from backfill import __main__ as command; from backfill.state_dir import control_file; "
    "control_file.PATIENCE = 300.0; "
    "sys.exit(command.main(sys.argv[1:]))"
)
"""The command, with so much patience that it does not take slow ones beside it for hanging."""


@pytest.fixture
def run(database: Database, start_stream: StartStream) -> StreamRun:
    table_of(database, 300)
    return start_stream(vnodeCount="1", numPartitions="1")


def tell(run: StreamRun, *words: str) -> None:
    assert main([*words, "--state-dir", run.options["stateDir"]]) == 0


def rows_read(run: StreamRun) -> int:
    return run.barrier().progress.row_count


def test_another_process_pauses_and_resumes_a_stream(run: StreamRun, capsys: pytest.CaptureFixture[str]) -> None:
    run.judged_batch(100)
    command = [sys.executable, "-m", "backfill", "pause", "--state-dir", run.options["stateDir"]]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert output == "from the next batch on: paused\n"
    assert not run.batch(100)
    held = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in trans%'"
    eventually(lambda: run.database.execute(held) == [(0,)])  # A session that was closed ends a moment later.
    run.database.execute("UPDATE t SET v = 'changed' WHERE id IN (7, 250)")
    run.database.execute("UPDATE t SET id = 1000 WHERE id = 8")
    run.database.execute("UPDATE t SET id = 8 WHERE id = 249")
    assert run.batch(100)
    assert run.fold.counts == {"insert": 101, "update_postimage": 1, "delete": 1}
    assert (rows_read(run), run.fold.rows[(7,)]["v"], run.fold.rows[(8,)]["v"]) == (100, "changed", "v249")
    run.restart()
    assert not run.batch(100)
    tell(run, "status", "--json")
    assert json.loads(capsys.readouterr().out)["paused"] is True
    tell(run, "resume")
    run.backfill(100)
    assert run.judged >= 3
    run.finish()


def test_a_throttled_stream_reads_less_and_at_zero_nothing(run: StreamRun) -> None:
    run.judged_batch(100)
    tell(run, "throttle", "30")
    run.judged_batch(100)
    assert rows_read(run) == 130
    tell(run, "throttle", "0")
    run.database.execute("DELETE FROM t WHERE id = 1")
    run.batch(100)
    assert not run.batch(100)
    assert rows_read(run) == 130
    tell(run, "throttle", "off")
    run.judged_batch(100)
    assert rows_read(run) == 230
    run.backfill()
    run.finish()


def test_the_log_of_others_does_not_pile_up_behind_a_paused_stream(
    run: StreamRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backfill.upstream.postgres.epochs.followed.HEARTBEAT_BYTES", 100_000)
    run.batch(100)
    tell(run, "pause")
    confirmed = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s"
    before = run.database.execute(confirmed, [run.slot])
    run.database.execute("CREATE TABLE other AS SELECT repeat('x', 100) FROM generate_series(1, 5000)")
    assert run.batch(100)
    run.catch_up(100)
    assert run.database.execute(confirmed, [run.slot]) > before
    assert rows_read(run) == 100


def test_what_is_no_stream_or_no_number_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pause", "--state-dir", str(tmp_path)]) == 1
    assert "expected the stateDir of a stream" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SystemExit):
        main(["throttle", "-5", "--state-dir", str(tmp_path)])
    for rows in ("fast", "1_000", str(10**13)):
        capsys.readouterr()
        with pytest.raises(SystemExit):
            main(["throttle", rows, "--state-dir", str(tmp_path)])
        assert "neither a whole number from 0 to 1099511627776 nor off" in capsys.readouterr().err


def test_what_several_processes_ask_for_at_once_is_all_asked_for(run: StreamRun) -> None:
    run.batch(100)
    command = [sys.executable, "-c", PATIENT, "re-backfill", "--state-dir", run.options["stateDir"]]
    asking = [subprocess.Popen([*command, "--from", str(number)], stdout=subprocess.PIPE) for number in range(4)]
    output = [asked.communicate()[0].decode() for asked in asking]
    assert [asked.returncode for asked in asking] == [0] * 4
    names = [text.split()[1].rstrip(":") for text in output]
    control = json.loads((Path(run.options["stateDir"]) / "control.json").read_text())
    assert sorted(request["id"] for request in control["requests"]) == sorted(names)


def test_a_stream_that_runs_is_not_dropped(
    run: StreamRun, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run.batch(100)
    monkeypatch.setattr("backfill.command.dropping.PATIENCE", 0.2)
    hold = "import sys; from pathlib import Path; from backfill.state_dir.claim import claim; "
    hold += "held = claim(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    command = ["drop", "--state-dir", run.options["stateDir"]]
    assert main(command) == 1
    assert 'drop needs --url, the database of "public"."t"' in capsys.readouterr().err
    command += ["--url", run.database.url(tmp_path)]
    with subprocess.Popen(
        [sys.executable, "-c", hold, run.options["stateDir"]], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as query:
        assert query.stdout is not None
        assert query.stdout.readline() == b"held\n"
        assert main(command) == 1
        assert f"is used by another query (process {query.pid})" in capsys.readouterr().err
        query.communicate()
    run.finish()
    run.stop()
    assert main([*command, "--staging-dir", "file://nowhere/x"]) == 1
    slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    assert run.database.execute(slots) == [(1,)]
    assert main(command) == 0
    assert run.database.execute(slots) == [(0,)]


def test_dropping_a_stream_leaves_no_control_behind(run: StreamRun, tmp_path: Path) -> None:
    run.batch(100)
    tell(run, "pause")
    run.stop()
    state_dir = Path(run.options["stateDir"])
    spilled = state_dir / "upsert.duckdb.tmp" / "duckdb_temp_1_0_storage_DEFAULT-0.tmp"
    spilled.parent.mkdir()
    spilled.write_text("rows")
    killed = [state_dir / ".upsert.duckdb.x1" / "upsert.duckdb", state_dir / ".control.json.y2"]
    killed[0].parent.mkdir()
    for part in killed:
        part.write_text("rows")
    tell(run, "drop", "--url", run.database.url(tmp_path))
    assert list(state_dir.iterdir()) == []
    assert run.database.execute("SELECT count(*) FROM pg_publication") == [(0,)]


def test_what_was_dropped_and_what_was_not_there_is_printed(
    run: StreamRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A publication that the options named is somebody else's, and stays."""
    run.database.execute("CREATE PUBLICATION feed FOR TABLE t")
    run.options = {**run.options, "publicationName": "feed", "stagingDir": str(tmp_path / "elsewhere")}
    run.batch(100)
    run.stop()
    stream = next((tmp_path / "elsewhere").iterdir()).name
    name = f"backfill_public_t_{stream}"
    run.database.execute("SELECT pg_drop_replication_slot(%s)", [name])
    state = run.options["stateDir"]
    tell(run, "drop", "--url", run.database.url(tmp_path))
    output = capsys.readouterr().out.splitlines()
    assert output[0].endswith(f": slot {name} (gone already)")
    assert output[1] == (
        f"found no staged chunks of it in {state}/staging; if it had another stagingDir, remove the folder {stream} "
        "there"
    )
    assert run.database.execute("SELECT pubname FROM pg_publication") == [("feed",)]


def test_a_publication_that_somebody_made_in_place_of_the_streams_own_is_left(
    run: StreamRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run.batch(100)
    name = run.slot
    run.stop()
    run.database.execute(f"DROP PUBLICATION {name}; CREATE PUBLICATION {name} FOR TABLE t")
    tell(run, "drop", "--url", run.database.url(tmp_path))
    assert f"publication {name} (kept: not made by a stream)" in capsys.readouterr().out
    assert run.database.execute("SELECT pubname FROM pg_publication") == [(name,)]


def test_a_role_that_may_drop_the_slot_alone_drops_nothing(
    run: StreamRun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run.batch(100)
    run.stop()
    role = run.database.name  # which goes with it
    run.database.execute(f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'narrow'; GRANT SELECT ON t TO {role}")
    monkeypatch.setenv("PGPASSWORD", "narrow")
    url = as_uri(run.database.dsn, user=role, password=None)
    assert main(["drop", "--state-dir", run.options["stateDir"], "--url", url]) == 1
    assert "must be owner of publication" in capsys.readouterr().err
    run.finish()
    run.require_equal()


def test_staged_chunks_are_dropped_with_the_stream(
    run: StreamRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = tmp_path / "elsewhere"
    run.options = {**run.options, "stagingDir": str(elsewhere)}
    run.batch(100)
    run.stop()
    tell(run, "drop", "--url", run.database.url(tmp_path), "--staging-dir", str(elsewhere))
    stream, publication, chunks = re.split(", |\n", capsys.readouterr().out.strip())
    assert re.search(r'^dropped stream \w+ of "public"\."t": slot backfill_public_t_\w+$', stream)
    assert re.search(r"^publication backfill_public_t_\w+$", publication)
    assert chunks == f"removed its staged chunks from {elsewhere}"
    assert list(elsewhere.iterdir()) == []


def test_staged_chunks_are_dropped_though_another_place_is_named(
    run: StreamRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The chunks hold rows, and the command cannot be run again."""
    run.batch(100)
    run.stop()
    staging = Path(run.options["stateDir"]) / "staging"
    assert len(list(staging.iterdir())) == 1
    tell(run, "drop", "--url", run.database.url(tmp_path), "--staging-dir", str(tmp_path / "wrong"))
    output = capsys.readouterr().out
    assert f"removed its staged chunks from {staging}" in output
    assert f"found no staged chunks of it in {tmp_path / 'wrong'}" in output
    assert not staging.exists()


def test_where_state_dir_is_lost_dropping_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drop", "--state-dir", str(tmp_path)]) == 1
    assert (
        "If a stream's state is lost, start the query, which rebuilds it from the checkpoint" in capsys.readouterr().err
    )
