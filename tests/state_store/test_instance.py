"""The instances of DuckDB that connect to files: what holds for both kinds, and for the one that is kept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest

from backfill_state import duckdb_instance
from backfill_state.duckdb_instance import Instances, OwnInstances, SharedInstance
from tests.full_disk import room_for


@pytest.fixture(params=[SharedInstance, OwnInstances])
def instances(request: pytest.FixtureRequest) -> Instances:
    made: Instances = request.param({"threads": 1})
    return made


def rows(instances: Instances, path: Path) -> list[int]:
    connected = instances.connect(path)
    found = connected.connection.execute("SELECT n FROM t ORDER BY n").fetchall()
    connected.close()
    return [n for (n,) in found]


def filled(instances: Instances, path: Path) -> None:
    connected = instances.connect(path)
    connected.connection.execute("CREATE TABLE t AS SELECT 1 AS n")
    connected.close()


def may_be_opened_elsewhere(path: Path) -> bool:
    code = "import duckdb, sys; duckdb.connect(sys.argv[1])"
    return subprocess.run([sys.executable, "-c", code, path], check=False, capture_output=True).returncode == 0


@pytest.mark.parametrize("name", ["it's a 'state'.duckdb", 'a "state" of — 東京', "?read_only=1", "select", ":memory:"])
def test_a_file_may_have_any_name(instances: Instances, tmp_path: Path, name: str) -> None:
    filled(instances, tmp_path / name)
    assert rows(instances, tmp_path / name) == [1]
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_connections_share_a_file_until_the_last_lets_go_of_it(instances: Instances, tmp_path: Path) -> None:
    path = tmp_path / "state"
    filled(instances, path)
    one, other = instances.connect(path), instances.connect(path)
    one.connection.execute("INSERT INTO t VALUES (2)")
    one.connection.begin()
    one.connection.execute("INSERT INTO t VALUES (3)")
    one.close()
    assert other.connection.execute("SELECT n FROM t ORDER BY n").fetchall() == [(1,), (2,)]
    assert not may_be_opened_elsewhere(path)
    other.close()
    assert may_be_opened_elsewhere(path)


def test_files_know_nothing_of_each_other(instances: Instances, tmp_path: Path) -> None:
    one, other = instances.connect(tmp_path / "one"), instances.connect(tmp_path / "other")
    for number, connected in enumerate((one, other)):
        connected.connection.execute("CREATE TABLE t AS SELECT ? AS n", [number])
    one.close()
    other.close()
    assert (rows(instances, tmp_path / "one"), rows(instances, tmp_path / "other")) == ([0], [1])


def test_a_file_can_be_opened_as_soon_as_it_is_mended(instances: Instances, tmp_path: Path) -> None:
    filled(instances, tmp_path / "good")
    (tmp_path / "bad").write_bytes(b"no database")
    for _ in range(2):
        with pytest.raises(duckdb.Error, match="not a valid DuckDB database file"):
            instances.connect(tmp_path / "bad")
    (tmp_path / "good").replace(tmp_path / "bad")
    assert rows(instances, tmp_path / "bad") == [1]


def test_a_file_that_cannot_be_opened_leaves_the_others_alone(instances: Instances, tmp_path: Path) -> None:
    filled(instances, tmp_path / "good")
    (tmp_path / "bad").write_bytes(b"no database")
    connected = instances.connect(tmp_path / "good")
    with pytest.raises(duckdb.Error, match="not a valid DuckDB database file"):
        instances.connect(tmp_path / "bad")
    assert connected.connection.execute("SELECT n FROM t").fetchall() == [(1,)]
    connected.close()


def test_an_instance_that_cannot_let_go_of_a_file_is_given_up_with_its_last_connection(tmp_path: Path) -> None:
    kept = SharedInstance({"threads": 1})
    filled(kept, tmp_path / "good")
    filled(kept, tmp_path / "bad")
    good, bad = kept.connect(tmp_path / "good"), kept.connect(tmp_path / "bad")
    bad.connection.execute("INSERT INTO t SELECT * FROM range(2, 100001)")
    with room_for((tmp_path / "bad").stat().st_size):
        bad.close()  # There is no room to take the log into the file.
    assert rows(kept, tmp_path / "bad") == [*range(1, 100_001)]
    good.connection.execute("INSERT INTO t VALUES (2)")
    assert not may_be_opened_elsewhere(tmp_path / "good")
    good.close()
    assert may_be_opened_elsewhere(tmp_path / "good")
    assert rows(kept, tmp_path / "good") == [1, 2]


def test_an_instance_that_has_attached_many_files_gives_way_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory that DuckDB keeps for each barrier ends with its instance."""
    made: list[duckdb.DuckDBPyConnection] = []
    connect = duckdb.connect

    def noted(*args: Any, **more: Any) -> duckdb.DuckDBPyConnection:
        made.append(connect(*args, **more))
        return made[-1]

    monkeypatch.setattr(duckdb, "connect", noted)
    monkeypatch.setattr(duckdb_instance, "ATTACHED_AT_MOST", 4)
    kept, path = SharedInstance({"threads": 1}), tmp_path / "state"
    filled(kept, path)
    assert [rows(kept, path) for _ in range(3)] == [[1]] * 3
    assert len(made) == 1
    assert [rows(kept, path) for _ in range(4)] == [[1]] * 4
    assert len(made) == 2
    other = kept.connect(tmp_path / "other")
    assert [rows(kept, path) for _ in range(5)] == [[1]] * 5
    assert len(made) == 3  # An instance stays while a file is open.
    other.close()
    assert rows(kept, path) == [1]
    assert len(made) == 4


def test_what_an_interrupt_left_attached_is_let_go_of_at_the_next_connection(tmp_path: Path) -> None:
    kept, path, other = SharedInstance({"threads": 1}), tmp_path / "state", tmp_path / "other"
    filled(kept, path)
    kept.connect(path)  # Nobody holds it, as where a Ctrl-C comes before it is assigned.
    filled(kept, other)
    assert may_be_opened_elsewhere(path)


def test_a_child_process_neither_waits_for_a_thread_of_its_parent_nor_shares_its_files(tmp_path: Path) -> None:
    code = """
import os, signal, sys
from pathlib import Path
import duckdb
from backfill_state import duckdb_instance
from backfill_state.duckdb_instance import SharedInstance
kept, path = SharedInstance({"threads": 1}), Path(sys.argv[1])
held = kept.connect(path / "held")
kept._lock.acquire()
if os.fork() == 0:
    signal.alarm(30)
    kept.connect(path / "of the child").close()
    try:
        kept.connect(path / "held")
    except duckdb.Error as error:
        os._exit(9 if "handle conflict" in str(error) else 1)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    run = subprocess.run([sys.executable, "-c", code, tmp_path], check=True, capture_output=True, text=True)
    assert run.stdout == "9\n"


def test_a_kept_instance_leaves_nothing_where_the_process_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    connected = SharedInstance({"threads": 1, "memory_limit": "16MB"}).connect(tmp_path / "state")
    with pytest.raises(duckdb.OutOfMemoryException):
        connected.connection.execute(
            "SELECT count(*) FROM (SELECT DISTINCT md5(i::VARCHAR) FROM range(1_000_000) r(i))"
        )
    connected.close()
    assert list(Path().iterdir()) == []
