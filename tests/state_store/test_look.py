"""Looking at a state file beside the stream that writes it."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import duckdb
import pytest

from backfill_state import (
    DuckDBProgressStore,
    StateDamagedError,
    StateFileError,
    StateStoreError,
    duckdb_copy,
    looked_at,
)
from tests.full_disk import room_for
from tests.state_store.streams import barrier, everything, rows_of, stream

WRITER = """
import sys, time
from pathlib import Path
from backfill_state import DuckDBProgressStore
from tests.state_store.streams import barrier, stream
path = Path(sys.argv[1])
for epoch in range(1, int(sys.argv[2]) + 1):
    with DuckDBProgressStore(path) as store:
        store.commit(barrier(epoch, (0, "eu", epoch, False, epoch), (1, None, None, False, epoch)))
    time.sleep(0.03)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with DuckDBProgressStore(tmp_path / "progress.duckdb") as store:
        store.begin(stream())
        store.commit(barrier(0, (0, "eu", 0, False, 0), (1, None, None, False, 0)))
    return tmp_path / "progress.duckdb"


def test_a_look_shows_what_the_store_shows_and_leaves_the_file_alone(path: Path) -> None:
    with DuckDBProgressStore(path) as store:
        expected = everything(store)
    before = path.read_bytes()
    with looked_at(path) as look:
        assert everything(look) == expected
        look.reset()
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_look_is_possible_while_somebody_has_the_file_open_and_shows_what_is_committed(path: Path) -> None:
    with DuckDBProgressStore(path) as store:
        store.commit(barrier(7, (0, "eu", 7, False, 7)))
        with looked_at(path) as look:
            assert look.epoch() == 7
        store.commit(barrier(8, (0, "eu", 8, False, 8)))
    with looked_at(path) as look:
        assert look.epoch() == 8


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), looked_at(tmp_path / "progress.duckdb"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_is_named_and_not_its_copy(path: Path) -> None:
    path.write_bytes(b"x" * 20_000)
    with pytest.raises(StateDamagedError, match=re.escape(str(path))), looked_at(path) as look:
        look.epoch()


def test_where_no_copy_can_be_kept_the_temporary_folder_is_named_and_not_the_file(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look() -> None:
        with pytest.raises(StateFileError, match="TMPDIR"), looked_at(path):
            pass

    for size in (0, path.stat().st_size - 1):  # The disk may fill up in the midst of the copy.
        with room_for(size):
            look()
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "nowhere")])
    look()


def test_an_error_about_the_copy_names_the_file(path: Path) -> None:
    """The copy is gone by then, so nobody could find it."""
    with duckdb.connect(str(path)) as connection:
        connection.execute("UPDATE format SET version = 99")
    message = rf"{re.escape(str(path))} has format version 99"
    with pytest.raises(StateStoreError, match=message) as caught, looked_at(path) as look:
        look.epoch()
    assert "backfill-look-" not in str(caught.value)


def test_a_copy_during_which_somebody_wrote_is_made_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[str] = []
    copy_file = duckdb_copy._copy_file

    def and_written(file: Path, target: Path) -> None:
        copy_file(file, target)
        copied.append(file.name)
        if len(copied) == 1:
            path.touch()

    monkeypatch.setattr(duckdb_copy, "_copy_file", and_written)
    with looked_at(path):
        assert copied == [path.name, f"{path.name}.wal"] * 2


def test_a_file_that_was_just_written_is_left_alone_first(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    written = path.stat().st_mtime_ns
    times = iter([written, written + 10**9])
    monkeypatch.setattr("backfill_state.duckdb_copy.time.sleep", rests.append)
    monkeypatch.setattr("backfill_state.duckdb_copy.time.time_ns", lambda: next(times))
    with looked_at(path):
        assert len(rests) == 1


def test_looks_show_whole_barriers_and_never_keep_the_writer_from_its_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer ends with an error if the file is not its own at any moment."""
    monkeypatch.setattr("backfill_state.duckdb_copy.PATIENCE", 300.0)  # A slow look easily misses the writer's rests.
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path), "20"], stderr=subprocess.PIPE, text=True) as writer:
        seen = []
        while writer.poll() is None:
            with looked_at(path) as look:
                epoch, rows = look.epoch(), rows_of(look.progress())
            assert {row[-1] for row in rows} == {epoch}
            seen.append(epoch)
        assert writer.stderr is not None
        assert writer.wait() == 0, writer.stderr.read()
    assert seen == sorted(seen, key=lambda epoch: epoch or 0)
    with looked_at(path) as look:
        assert look.epoch() == 20
