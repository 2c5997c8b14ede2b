from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from backfill_state import StateVersionError
from backfill_state.migrations import FORMAT_VERSION, STEPS, migrate, stored_version


def file_of_version(version: int) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(":memory:")
    connection.execute("CREATE TABLE format (version INTEGER NOT NULL)")
    connection.execute("INSERT INTO format VALUES (?)", [version])
    connection.execute("CREATE TABLE steps (name VARCHAR)")
    return connection


def first(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("INSERT INTO steps VALUES ('1 to 2')")


def second(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("INSERT INTO steps VALUES ('2 to 3')")


def broken(connection: duckdb.DuckDBPyConnection) -> None:
    second(connection)
    connection.execute("SELECT * FROM not_there")


@pytest.mark.parametrize(("version", "taken"), [(1, [("1 to 2",), ("2 to 3",)]), (2, [("2 to 3",)]), (3, [])])
def test_a_file_takes_the_steps_it_lacks_in_order(version: int, taken: list[tuple[str]]) -> None:
    with file_of_version(version) as connection:
        migrate(connection, "/s", (first, second), "format")
        assert connection.execute("SELECT name FROM steps").fetchall() == taken
        assert stored_version(connection, "/s", "format") == 3


def test_a_step_that_fails_leaves_the_version_before_it() -> None:
    with file_of_version(1) as connection:
        with pytest.raises(duckdb.CatalogException):
            migrate(connection, "/s", (first, broken), "format")
        connection.rollback()
        assert connection.execute("SELECT name FROM steps").fetchall() == [("1 to 2",)]
        assert stored_version(connection, "/s", "format") == 2


def test_a_file_newer_than_the_last_step_is_refused() -> None:
    with file_of_version(4) as connection:
        with pytest.raises(StateVersionError, match="format version 4, and this release reads format versions 1 to 3"):
            migrate(connection, "/s", (first, second), "format")
        assert connection.execute("SELECT name FROM steps").fetchall() == []


def test_every_format_version_has_a_golden_file() -> None:
    golden = Path(__file__).parent / "golden"
    assert 1 + len(STEPS) == FORMAT_VERSION
    for version in range(1, FORMAT_VERSION + 1):
        assert (golden / f"progress-v{version}.duckdb").exists()
