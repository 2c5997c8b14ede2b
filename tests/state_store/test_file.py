"""The file of a `DuckDBProgressStore`: who may have it, what is in it, and what happens when it is no such file."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from backfill_state import (
    DuckDBProgressStore,
    StateBusyError,
    StateConflictError,
    StateDamagedError,
    StateUnwritableError,
    StateVersionError,
)
from backfill_state.duckdb_file import StateFile
from backfill_state.duckdb_rows import PROGRESS_FILE
from tests.lost_power import Disk
from tests.state_store.streams import barrier, bounds_table, everything, rows_of, stream


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "progress.duckdb"


def fill(path: Path, epochs: int = 1) -> None:
    with DuckDBProgressStore(path) as store:
        store.begin(stream())
        store.set_bounds(bounds_table([(0, "eu", 9)]))
        for epoch in range(1, epochs + 1):
            store.commit(barrier(epoch, (0, "eu", epoch, False, epoch), (1, None, None, True, 0)))


def read_or_damaged(path: Path) -> object:
    try:
        with DuckDBProgressStore(path) as store:
            return everything(store)
    except StateDamagedError:
        return "damaged"


def in_another_process(code: str, *args: object) -> subprocess.Popen[str]:
    """Runs code that prints a line when it is ready, and waits for that line."""
    command = [sys.executable, "-c", code, *map(str, args)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_making_a_store_touches_nothing(path: Path) -> None:
    DuckDBProgressStore(path).close()
    assert not path.parent.exists()


def test_nothing_but_the_state_file_is_left_behind(path: Path) -> None:
    fill(path, epochs=3)
    assert list(path.parent.iterdir()) == [path]


def test_the_name_of_a_file_that_was_made_is_durable(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.parent.mkdir()
    disk = Disk(path.parent, monkeypatch)
    with DuckDBProgressStore(path) as store:
        assert store.identity() is None
    assert disk.files == {path.name}


def test_a_person_can_read_it(path: Path) -> None:
    fill(path)
    with duckdb.connect(str(path), read_only=True) as plain:
        progress = plain.execute("SELECT * FROM backfill_progress ORDER BY vnode")
        assert [column[0] for column in progress.description or []] == [
            "vnode",
            "region",
            "id",
            "backfill_finished",
            "row_count",
        ]
        assert progress.fetchall() == [(0, "eu", 1, False, 1), (1, None, None, True, 0)]
        assert plain.execute("SELECT * FROM vnode_bounds").fetchall() == [(0, "eu", 9)]
        assert plain.execute("SELECT epoch, checkpoint_offset, properties['slot'] FROM stream").fetchall() == [
            (1, '{"epoch":1}', "backfill_s1")
        ]


def test_the_file_stays_small_however_many_barriers_it_has_seen(path: Path) -> None:
    fill(path)
    for epoch in range(2, 200, 20):
        with DuckDBProgressStore(path) as store:
            for number in range(epoch, epoch + 20):
                store.commit(barrier(number, *((vnode, "eu", number, False, number) for vnode in range(100))))
    assert path.stat().st_size < 400_000


def test_a_file_held_by_another_process_names_the_holder(path: Path) -> None:
    fill(path)
    code = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    with in_another_process(code, path) as holder:
        store = DuckDBProgressStore(path)
        with pytest.raises(StateBusyError, match=rf"{path} is in use by process {holder.pid};") as caught:
            store.epoch()
        assert caught.value.holder == holder.pid
        assert holder.stdin is not None
        holder.stdin.close()
        assert holder.wait(30) == 0
        with store:
            assert store.epoch() == 1


def test_a_file_opened_by_this_process_with_other_settings_is_busy(path: Path) -> None:
    fill(path)
    with duckdb.connect(str(path)), pytest.raises(StateBusyError) as caught:
        DuckDBProgressStore(path).epoch()
    assert caught.value.holder == os.getpid()


def test_two_stores_of_one_process_see_each_others_barriers(path: Path) -> None:
    fill(path)
    with DuckDBProgressStore(path) as one, DuckDBProgressStore(path) as other:
        one.commit(barrier(2))
        assert other.epoch() == 2
        other.commit(barrier(3))
        assert one.epoch() == 3


@pytest.mark.parametrize("content", [b"", b"not a database", b"\0" * 50_000, b"x" * 5_000])
def test_a_file_that_is_no_database_is_called_damaged(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(StateDamagedError, match="the checkpoint alone suffices to rebuild it") as caught:
        DuckDBProgressStore(path).epoch()
    assert str(path) in str(caught.value)
    assert path.read_bytes() == content


@pytest.mark.parametrize("start", [0, 9, 40, 4096 + 20, 8192 + 20, 12288 + 10])
def test_a_damaged_file_is_never_read_as_if_it_were_whole(path: Path, start: int) -> None:
    fill(path)
    with DuckDBProgressStore(path) as store:
        whole = everything(store)
    content = bytearray(path.read_bytes())
    content[start : start + 64] = bytes(byte ^ 0xFF for byte in content[start : start + 64])
    path.write_bytes(content)
    assert read_or_damaged(path) in (whole, "damaged")


def test_a_file_cut_short_is_called_damaged(path: Path) -> None:
    fill(path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(StateDamagedError):
        everything(DuckDBProgressStore(path))


def test_a_deleted_file_is_begun_anew_without_its_old_log(path: Path) -> None:
    code = (
        "import os, signal, sys\nfrom pathlib import Path\n"
        "from tests.state_store.test_file import fill, DuckDBProgressStore\n"
        "DuckDBProgressStore.close = lambda self: os.kill(os.getpid(), signal.SIGKILL)\n"
        "fill(Path(sys.argv[1]), epochs=3)"
    )
    with in_another_process(code, path):
        pass
    log = path.with_name(path.name + ".wal")
    assert log.exists()
    path.unlink()
    with DuckDBProgressStore(path) as store:
        assert store.identity() is None
    assert not log.exists()


def test_somebody_elses_database_is_refused_and_not_called_damaged(path: Path) -> None:
    path.parent.mkdir()
    with duckdb.connect(str(path)) as theirs:
        theirs.execute("CREATE TABLE payroll (amount INTEGER)")
    with pytest.raises(StateConflictError, match="not one with the state of a stream"):
        DuckDBProgressStore(path).epoch()


def test_a_newer_format_is_refused_with_both_numbers(path: Path) -> None:
    fill(path)
    with duckdb.connect(str(path)) as newer:
        newer.execute("UPDATE format SET version = 7")
    content = path.read_bytes()
    with pytest.raises(StateVersionError, match="has format version 7, and this release reads format versions 1 to 1"):
        DuckDBProgressStore(path).epoch()
    assert path.read_bytes() == content


@pytest.mark.parametrize("change", ["DELETE FROM format", "UPDATE format SET version = 0"])
def test_a_file_without_a_version_is_called_damaged(path: Path, change: str) -> None:
    fill(path)
    with duckdb.connect(str(path)) as edited:
        edited.execute(change)
    with pytest.raises(StateDamagedError, match="no single version"):
        DuckDBProgressStore(path).epoch()


@pytest.mark.parametrize(
    "change",
    [
        "DROP TABLE vnode_bounds",
        "ALTER TABLE stream DROP COLUMN system",
        "ALTER TABLE backfill_progress DROP COLUMN row_count",
        "INSERT INTO stream FROM stream",
        "UPDATE stream SET key_types = ['GEOMETRY', 'BIGINT']",
        "UPDATE stream SET key_columns = ['region']",
    ],
)
def test_a_file_that_somebody_has_changed_is_called_damaged(path: Path, change: str) -> None:
    fill(path)
    with duckdb.connect(str(path)) as edited:
        edited.execute(change)
    with pytest.raises(StateDamagedError):
        everything(DuckDBProgressStore(path))


def test_a_directory_that_cannot_be_made_is_named(path: Path) -> None:
    path.parent.write_text("a file where the directory should be")
    with pytest.raises(StateUnwritableError, match=r"could not be opened or written \((File exists|Not a directory)"):
        DuckDBProgressStore(path).epoch()


def test_a_directory_in_place_of_the_file_is_named(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(StateUnwritableError, match="Is a directory"):
        DuckDBProgressStore(path).epoch()


def no_links(_source: Path, _target: Path) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_another_process_makes_meanwhile_stays_as_it_is(
    path: Path, monkeypatch: pytest.MonkeyPatch, *, links: bool
) -> None:
    """This holds for what the other process commits to the file's log alone, too, as it dies right after."""
    first = (
        "import os, sys; from backfill_state import DuckDBProgressStore; from tests.state_store.streams import stream\n"
        "store = DuckDBProgressStore(sys.argv[1]); store.begin(stream()); os.abort()"
    )

    def make_late(connection: duckdb.DuckDBPyConnection) -> None:
        subprocess.run([sys.executable, "-c", first, path], check=False)
        PROGRESS_FILE.create_tables(connection)

    if not links:
        monkeypatch.setattr(os, "link", no_links)
    with StateFile(path, replace(PROGRESS_FILE, create_tables=make_late)).transaction() as connection:
        assert connection.execute("SELECT stream_id FROM stream").fetchall() == [(stream().stream_id,)]


def test_a_file_system_without_hard_links_will_do(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", no_links)
    fill(path)
    with DuckDBProgressStore(path) as store:
        assert store.epoch() == 1
    assert list(path.parent.iterdir()) == [path]


_FULL_DISK = """
import resource, sys
from backfill_state import DuckDBProgressStore, StateUnwritableError
from tests.state_store.streams import barrier, rows_of, stream

store = DuckDBProgressStore(sys.argv[1])
epoch = store.epoch()
resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, resource.RLIM_INFINITY))
try:
    while True:
        epoch += 1
        store.commit(barrier(epoch, *((vnode, "x" * 200, epoch, False, epoch) for vnode in range(50))))
except StateUnwritableError as error:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert store.epoch() == epoch - 1, (store.epoch(), epoch)
    assert {row[-1] for row in rows_of(store.progress())} == {epoch - 1}
    store.commit(barrier(epoch))
    print(error, end="")
"""


def test_a_full_disk_leaves_the_last_barrier_and_says_so(path: Path) -> None:
    with DuckDBProgressStore(path) as store:
        store.begin(stream())
        store.commit(barrier(1, (0, "eu", 1, False, 1)))
    done = subprocess.run([sys.executable, "-c", _FULL_DISK, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"the state file {path} could not be opened or written" in done.stdout
    assert "File too large" in done.stdout
    with DuckDBProgressStore(path) as store:
        assert rows_of(store.progress())
