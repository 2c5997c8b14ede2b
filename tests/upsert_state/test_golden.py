"""Files that older releases have written are read, and this release writes the tables of its version to the letter."""

from __future__ import annotations

import gzip
import hashlib
import struct
from pathlib import Path

import duckdb
import pytest

from backfill_state.upsert import DuckDBUpsertState
from backfill_state.upsert.duckdb_tables import UPSERT_FORMAT_VERSION
from tests.upsert_state.golden import make_v1, make_v2, make_v4
from tests.upsert_state.upserts import entries, put, rows_at

GOLDEN = Path(make_v1.__file__).parent


def golden(version: int, tmp_path: Path) -> Path:
    path = tmp_path / "upsert.duckdb"
    path.write_bytes(gzip.decompress((GOLDEN / f"upsert-v{version}.duckdb.gz").read_bytes()))
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return golden(1, tmp_path)


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
        # A release that computed another probe for the key would find nothing.
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


def test_a_file_of_version_1_has_the_tables_of_today_once_it_is_opened(path: Path) -> None:
    with DuckDBUpsertState(path, make_v1.LAYOUT) as state:
        assert state.totals() == make_v1.TOTALS
        put(state, "43", (make_v1.KEYS[0], 9, 0, make_v2.LONG))
        assert rows_at(state, *make_v1.KEYS[:2]) == [make_v2.LONG, make_v1.NOTHING]
    today = (GOLDEN / f"upsert-schema-v{UPSERT_FORMAT_VERSION}.sql").read_text()
    assert make_v1.schema_of(path) == today.replace(", v6 UINTEGER[]", "")  # the column of make_v4
    with duckdb.connect(str(path), read_only=True) as plain:
        size = plain.execute("SELECT sum(size)::BIGINT FROM entries_1").fetchall()[0][0]
        dead = plain.execute("SELECT sum(size)::BIGINT FROM entries_1 SEMI JOIN dead_1 USING (seq)").fetchall()[0][0]
        assert plain.execute("FROM segments").fetchall() == [(1, 6, 3, size, dead)]


@pytest.mark.parametrize("version", [2, 3])
def test_a_file_of_a_later_version_is_read_to_the_last_value(tmp_path: Path, version: int) -> None:
    with DuckDBUpsertState(golden(version, tmp_path), make_v1.LAYOUT) as state:
        assert (state.token(), state.totals()) == (make_v1.BATCH, make_v2.TOTALS)
        assert entries(state, *make_v1.KEYS) == make_v2.ENTRIES


def test_a_file_of_version_2_holds_these_very_pieces(tmp_path: Path) -> None:
    with duckdb.connect(str(golden(2, tmp_path)), read_only=True) as plain:
        pieces = plain.execute("SELECT seq, cell, piece, data FROM long_1 ORDER BY seq, piece").fetchall()
        text = make_v2.LONG[0].encode()
        assert pieces == [(seq, 0, piece, text[512 * piece :][:512]) for seq in (1, 2) for piece in (0, 1)]
        assert plain.execute("SELECT v0 FROM entries_1 WHERE seq = 2").fetchall() == [(None,)]


def test_a_file_of_version_3_counts_the_bytes_of_what_is_dead(tmp_path: Path) -> None:
    with duckdb.connect(str(golden(3, tmp_path)), read_only=True) as plain:
        sizes = dict(plain.execute("SELECT seq, size FROM entries_1").fetchall())
        dead = [seq for (seq,) in plain.execute("FROM dead_1").fetchall()]
        assert sorted(dead) == [0, 1]
        counted = (1, 5, 2, sum(sizes.values()), sizes[0] + sizes[1])
        assert plain.execute("SELECT segment, entries, dead, size, dead_size FROM segments").fetchall() == [counted]


def test_a_file_of_version_4_is_read_to_the_last_value(tmp_path: Path) -> None:
    with DuckDBUpsertState(golden(4, tmp_path), make_v4.LAYOUT) as state:
        assert (state.token(), state.totals()) == (make_v1.BATCH, make_v4.TOTALS)
        found = entries(state, *make_v1.KEYS)
    assert found == make_v4.ENTRIES
    assert str(found[2][-1][-1]) == "[-0.0, None]"


def test_a_file_of_version_4_holds_these_very_pieces_of_a_list(tmp_path: Path) -> None:
    with duckdb.connect(str(golden(4, tmp_path)), read_only=True) as plain:
        pieces = plain.execute("SELECT seq, piece, data FROM long_1 WHERE cell = 6 ORDER BY seq, piece").fetchall()
        numbers = struct.pack("<200f", *make_v4.VECTOR)
        assert pieces == [(seq, piece, numbers[512 * piece :][:512]) for seq in (1, 2) for piece in (0, 1)]
        assert plain.execute("SELECT v6 FROM entries_1 WHERE seq = 2").fetchall() == [(None,)]


def test_a_file_written_today_has_the_tables_of_its_version(tmp_path: Path) -> None:
    make_v4.make(tmp_path / "upsert.duckdb")
    written = make_v1.schema_of(tmp_path / "upsert.duckdb")
    assert written == (GOLDEN / f"upsert-schema-v{UPSERT_FORMAT_VERSION}.sql").read_text()
