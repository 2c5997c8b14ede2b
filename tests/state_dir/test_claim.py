"""A state directory is used by one process at a time, and by the next as soon as that one has ended."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import pytest

from backfill.errors import StateBusyError, StateError
from backfill.state_dir.claim import FILE, claim
from backfill.state_dir.file_lock import locked
from tests.full_disk import room_for

OTHER = """
import sys, time
from pathlib import Path
from backfill.state_dir.claim import claim
held = claim(Path(sys.argv[1]), patience=0.2)
print("has it", flush=True)
time.sleep(1000)
"""


@contextmanager
def another(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Starts another process that claims the folder, and requires that it succeeds."""
    with subprocess.Popen([sys.executable, "-c", OTHER, str(folder)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "has it\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    with another(tmp_path) as process:
        yield process


def test_a_claimed_folder_is_refused_with_the_process_that_has_it(other: subprocess.Popen[str], tmp_path: Path) -> None:
    expected = (
        rf"is used by another query \(process {other.pid}\), or twice by this one, as when a stream is .*"
        r"\. Stop the other query \(SparkSession\.stop\(\) does not\)"
    )
    with pytest.raises(StateBusyError, match=expected):
        claim(tmp_path, patience=0.2)


def test_a_claim_on_a_full_disk_says_so(tmp_path: Path) -> None:
    with room_for(0), pytest.raises(StateError, match=r"stateDir cannot be written: .*File too large"):
        claim(tmp_path)
    with another(tmp_path):
        pass


def test_a_claim_ends_with_its_process(other: subprocess.Popen[str], tmp_path: Path) -> None:
    other.kill()
    other.wait()
    with claim(tmp_path, patience=0.0):
        assert (tmp_path / "claim").exists()


def test_a_claim_that_was_closed_can_be_had_by_another_process(tmp_path: Path) -> None:
    held = claim(tmp_path)
    held.close()
    with another(tmp_path):
        pass


def test_a_claim_is_of_the_process_which_loses_it_with_any_file_that_it_closes_there(tmp_path: Path) -> None:
    with claim(tmp_path):
        claim(tmp_path, patience=0.0).close()
        with another(tmp_path):
            pass


def test_a_claim_is_had_on_the_file_that_the_next_process_meets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[str] = []

    def dropped_meanwhile(file: TextIO) -> bool:
        if not removed:
            (tmp_path / FILE).unlink()
            removed.append(FILE)
        return locked(file)

    monkeypatch.setattr("backfill.state_dir.file_lock.locked", dropped_meanwhile)
    with claim(tmp_path) as held:
        assert removed
        assert os.path.samestat(os.fstat(held.fileno()), (tmp_path / FILE).stat())


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"stateDir cannot be written: .*give this process's account access"):
        claim(tmp_path / "missing")
