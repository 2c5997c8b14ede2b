"""What older releases have written, and what this one writes, to the letter."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import duckdb
import pytest

from backfill_state.upsert import DuckDBUpsertState
from backfill_state.upsert.duckdb_tables import UPSERT_FORMAT_VERSION
from tests.upsert_state.golden import make_v1
from tests.upsert_state.upserts import entries, put

GOLDEN = Path(make_v1.__file__).parent


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "upsert.duckdb"
    path.write_bytes(gzip.decompress((GOLDEN / "upsert-v1.duckdb.gz").read_bytes()))
    return path


def test_a_file_of_version_1_is_read_to_the_last_value(path: Path) -> None:
    with DuckDBUpsertState(path, make_v1.LAYOUT) as state:
        assert (state.token(), state.totals()) == (make_v1.BATCH, make_v1.TOTALS)
        found = entries(state, *make_v1.KEYS)
    assert found == make_v1.ENTRIES
    assert str(found[0][-1][4]) == "-0.0"


def test_a_file_of_version_1_goes_on(path: Path) -> None:
    with DuckDBUpsertState(path, make_v1.LAYOUT) as state:
        stats = put(state, "43", (make_v1.KEYS[0], 7, -2, None), (make_v1.KEYS[1], 9, 0, make_v1.ROW))
    assert (stats.stale, stats.inserts) == (1, 1)
    with DuckDBUpsertState(path, make_v1.LAYOUT) as state:
        assert [entry[:3] for entry in entries(state, *make_v1.KEYS)] == [(7, -1, True), (9, 0, True), (7, 0, True)]


def test_a_file_of_version_1_holds_these_very_cells(path: Path) -> None:
    with duckdb.connect(str(path), read_only=True) as plain:
        assert plain.execute("SELECT version FROM upsert_format").fetchall() == [(1,)]
        assert plain.execute("SELECT segment, entries, dead FROM segments").fetchall() == [(1, 5, 2)]
        assert plain.execute("SELECT seq FROM dead_1 ORDER BY seq").fetchall() == [(0,), (1,)]
        # A release that makes another probe of the key finds nothing.
        cells = plain.execute(
            "SELECT probe, k0, k1, k2, seq, order_key, present, v2::VARCHAR FROM entries_1 ORDER BY seq"
        )
        assert cells.fetchall()[2] == (
            int.from_bytes(hashlib.md5("eu é/00FF/19782".encode()).digest()[8:], "little"),  # noqa: S324
            "eu é",
            b"\0\xff",
            19782,
            2,
            7,
            True,
            "-1234567890123456.7891",
        )


def test_the_tables_of_version_1_are_these(path: Path) -> None:
    assert make_v1.schema_of(path) == (GOLDEN / "upsert-schema-v1.sql").read_text()


def test_a_file_written_today_has_the_tables_of_its_version(tmp_path: Path) -> None:
    make_v1.make(tmp_path / "upsert.duckdb")
    written = make_v1.schema_of(tmp_path / "upsert.duckdb")
    assert written == (GOLDEN / f"upsert-schema-v{UPSERT_FORMAT_VERSION}.sql").read_text()
