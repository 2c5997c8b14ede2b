"""`backfill drop` beside other commands and queries with the same stateDir, as far as that needs no database."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from backfill import __main__ as command
from backfill.state_dir import claim, control_file
from backfill.state_dir.files import open_store, remove_files
from backfill.state_dir.kept_options import ONLY_SNAPSHOT
from backfill_state import StreamIdentity

HOLDER = """
import sys
from pathlib import Path
from backfill.state_dir.files import remove_files
from backfill.state_dir.{module} import {hold}
held = {hold}(Path(sys.argv[1]))
{enter}
print("has it", flush=True)
sys.stdin.readline()
{then}
"""

CLAIM = {"module": "claim", "hold": "claim", "enter": ""}
CONTROL = {"module": "control_file", "hold": "changing", "enter": "held.__enter__()"}

DROPPED = "remove_files(Path(sys.argv[1]))"


@contextmanager
def held(lock: dict[str, str], folder: Path, then: str = "") -> Iterator[Callable[[], object]]:
    """Has another process hold the lock until the function that this gives is called; it then does `then` first."""
    program = HOLDER.format(**lock, then=then)
    words = [sys.executable, "-c", program, str(folder)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "has it\n"
        yield lambda: process.communicate("\n")
        process.kill()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The stateDir of a stream that has nothing in its database."""
    key = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    with open_store(tmp_path) as store:
        store.begin(StreamIdentity("s1", "postgresql", "1", '"public"."t"', "1", key, ((ONLY_SNAPSHOT, "true"),)))
    return tmp_path


WAITING = """
import sys, time
from types import SimpleNamespace
from backfill import __main__ as command
from backfill.state_dir import file_lock
locked = file_lock.locked
def locked_aloud(file):
    has_it = locked(file)
    if not has_it:
        print("waits", flush=True)
    return has_it
file_lock.locked = locked_aloud
file_lock.time = SimpleNamespace(monotonic=lambda: 0.0, sleep=time.sleep)  # However slow the other one is.
sys.exit(command.main(sys.argv[1:]))
"""


@contextmanager
def waiting(*words: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Runs this command in a process that has found the lock held by another, and waits for it."""
    line, pipe = [sys.executable, "-c", WAITING, *words, "--state-dir", str(folder)], subprocess.PIPE
    with subprocess.Popen(line, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "waits\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("url", [(), ("--url", "postgresql://127.0.0.1:1/none")])
def test_a_snapshot_alone_is_dropped_without_its_database(
    folder: Path, capsys: pytest.CaptureFixture[str], url: tuple[str, ...]
) -> None:
    assert command.main(["drop", "--state-dir", str(folder), *url]) == 0
    assert capsys.readouterr().out.startswith('dropped stream s1 of "public"."t"\n')
    assert list(folder.iterdir()) == []


def test_a_stream_is_not_dropped_while_another_command_changes_its_control(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(control_file, "PATIENCE", 0.2)
    with held(CONTROL, folder) as let_go:
        assert command.main(["drop", "--state-dir", str(folder)]) == 1
        assert "another `backfill` command has held" in capsys.readouterr().err
        let_go()
    assert command.main(["drop", "--state-dir", str(folder)]) == 0


@pytest.mark.parametrize("words", [["throttle", "off"], ["resume"], ["re-backfill"], ["drop"]], ids=" ".join)
def test_what_was_asked_while_a_stream_was_dropped_is_refused(folder: Path, words: list[str]) -> None:
    """Otherwise the request would wait for the next stream with this stateDir."""
    lock = CLAIM if words == ["drop"] else CONTROL
    with held(lock, folder, then=DROPPED) as let_go, waiting(*words, folder=folder) as asked:
        let_go()
        assert ("is gone" if words == ["drop"] else "there is no backfill.duckdb") in asked.communicate()[1]
    assert asked.returncode == 1
    assert {path.name for path in folder.iterdir()} <= {claim.FILE, control_file.LOCK}


def test_the_claim_goes_last_because_from_then_on_the_folder_may_be_the_next_streams(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[str] = []
    for name in (".backfill.duckdb.x1", "upsert.duckdb.tmp"):
        (folder / name).mkdir()
    (folder / claim.FILE).touch()
    unlink = Path.unlink

    def noted(path: Path, *, missing_ok: bool = False) -> None:
        removed.append(path.name)
        assert path.name != claim.FILE or [left.name for left in folder.iterdir()] == [claim.FILE]
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", noted)
    remove_files(folder)
    assert removed[-1] == claim.FILE


def test_a_state_file_that_holds_no_stream_is_not_taken_for_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_store(tmp_path) as store:
        assert store.identity() is None
    assert command.main(["drop", "--state-dir", str(tmp_path)]) == 1
    printed = capsys.readouterr().err
    assert "has no stream, as after a start that failed; nothing was dropped. Delete the folder. " in printed
    assert "SELECT pg_drop_replication_slot" in printed
