"""Files that older releases have written are read, and this release writes the tables of its version to the letter."""

from __future__ import annotations

import shutil
from pathlib import Path

import duckdb

from backfill_state import FORMAT_VERSION, DuckDBProgressStore
from tests.state_store.golden import make_v1
from tests.state_store.streams import barrier, bounds_table, progress_table

GOLDEN = Path(make_v1.__file__).parent


def test_a_file_of_version_1_is_read_to_the_last_value(tmp_path: Path) -> None:
    path = Path(shutil.copy(GOLDEN / "progress-v1.duckdb", tmp_path))
    with DuckDBProgressStore(path) as store:
        assert store.identity() == make_v1.IDENTITY
        assert (store.epoch(), store.offset()) == (42, make_v1.OFFSET)
        assert store.progress() == progress_table(make_v1.PROGRESS, make_v1.KEY)
        assert store.bounds() == bounds_table(make_v1.BOUNDS, make_v1.KEY)


def test_a_file_of_version_1_goes_on(tmp_path: Path) -> None:
    path = Path(shutil.copy(GOLDEN / "progress-v1.duckdb", tmp_path))
    moved = barrier(43, *((vnode, *make_v1.NOWHERE, True, 1) for vnode in range(3)), key=make_v1.KEY)
    with DuckDBProgressStore(path) as store:
        store.commit(moved)
    with DuckDBProgressStore(path) as store:
        assert store.epoch() == 43
        assert store.progress() == moved.changed


def test_a_file_of_version_1_holds_these_very_cells(tmp_path: Path) -> None:
    path = Path(shutil.copy(GOLDEN / "progress-v1.duckdb", tmp_path))
    with duckdb.connect(str(path), read_only=True) as plain:
        assert plain.execute("SELECT version FROM format").fetchall() == [(1,)]
        assert plain.execute("SELECT key_names[2:3], key_columns[2:3], key_types FROM stream").fetchall() == [
            (
                ["vnode", "Region"],
                ["vnode_", "Region_"],
                [
                    *("VARCHAR", "BIGINT", "BLOB", "DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE"),
                    *("TIME", "DECIMAL(20,4)", "BOOLEAN", "DOUBLE"),
                ],
            )
        ]
        stored = "SELECT vnode, vnode_, epoch_us(instant), amount::VARCHAR FROM backfill_progress ORDER BY vnode"
        assert plain.execute(stored).fetchall() == [
            (0, None, None, None),
            (1, 2**63 - 1, 1719837000000000, "-1234567890123456.7891"),
            (2, None, None, None),
        ]


def test_the_tables_of_version_1_are_these(tmp_path: Path) -> None:
    path = Path(shutil.copy(GOLDEN / "progress-v1.duckdb", tmp_path))
    assert make_v1.schema_of(path) == (GOLDEN / "schema-v1.sql").read_text()


def test_a_file_written_today_has_the_tables_of_its_version(tmp_path: Path) -> None:
    make_v1.make(tmp_path / "progress.duckdb")
    written = make_v1.schema_of(tmp_path / "progress.duckdb")
    assert written == (GOLDEN / f"schema-v{FORMAT_VERSION}.sql").read_text()
