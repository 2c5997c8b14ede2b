"""Where connections to a file come from: what holds of both kinds, and of the one that is kept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from backfill_state.duckdb_instance import Instances, Kept, OfItsOwn


@pytest.fixture(params=[Kept, OfItsOwn])
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
    kept = Kept({"threads": 1})
    filled(kept, tmp_path / "good")
    good, bad = kept.connect(tmp_path / "good"), kept.connect(tmp_path / "bad")
    bad.connection.execute("USE memory")
    bad.connection.execute("DETACH file_2")
    bad.close()
    filled(kept, tmp_path / "bad")
    good.connection.execute("INSERT INTO t VALUES (2)")
    assert not may_be_opened_elsewhere(tmp_path / "good")
    good.close()
    assert may_be_opened_elsewhere(tmp_path / "good")
    assert rows(kept, tmp_path / "good") == [1, 2]
