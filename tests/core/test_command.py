"""How the command ends that is interrupted, cannot write its output, or may not look into a folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from backfill import __main__ as command
from backfill.state_dir.control_file import read_control


@pytest.mark.parametrize(
    ("name", "more", "expected"), [("drop", [], 130), ("status", [], 130), ("status", ["--watch"], 0)]
)
def test_only_a_look_without_an_end_is_a_success_when_it_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, name: str, more: list[str], expected: int
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_RUN", {name: interrupted})
    assert command.main([name, "--state-dir", "/nowhere", *more]) == expected


@pytest.mark.parametrize("given", ["columns", "=id", ""])
def test_an_option_without_a_value_is_not_taken_for_an_empty_one(
    capsys: pytest.CaptureFixture[str], given: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(["doctor", "--url", "postgresql://127.0.0.1:1/none", "--dbtable", "t", "--option", given])
    assert f"argument --option: {given!r} is not NAME=VALUE, such as columns=id,total" in capsys.readouterr().err


def test_output_that_cannot_be_written_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "backfill.duckdb").touch()
    words = [sys.executable, "-m", "backfill", "pause", "--state-dir", str(tmp_path)]
    with Path("/dev/full").open("w") as full:
        run = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert run.returncode == 1
    assert run.stderr == "backfill: the output cannot be written: [Errno 28] No space left on device\n"
    assert read_control(tmp_path).paused, "what was asked for is done all the same"


@pytest.fixture
def closed_folder(tmp_path: Path) -> Iterator[Path]:
    """A stateDir that this process may not enter; as root may enter any, the process gives up being root meanwhile."""
    account = os.geteuid()
    folder = tmp_path / "state"
    folder.mkdir()
    (folder / "backfill.duckdb").touch()
    folder.chmod(0)
    if account == 0:
        os.seteuid(65534)
    yield folder
    os.seteuid(account)
    folder.chmod(0o700)


@pytest.mark.parametrize("name", ["pause", "status", "re-backfill", "drop"])
def test_a_folder_of_another_account_is_reported_as_closed(
    closed_folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert command.main([name, "--state-dir", str(closed_folder)]) == 1
    printed = capsys.readouterr().err
    assert str(closed_folder) in printed
    assert "Permission denied" in printed
