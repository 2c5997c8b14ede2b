"""The file of a `DuckDBUpsertState`: who may have it, when it is open, and what happens when it is no such file."""

from __future__ import annotations

import shutil
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from backfill_state import (
    DuckDBProgressStore,
    StateConflictError,
    StateDamagedError,
    StateVersionError,
    UpsertStateDamagedError,
)
from backfill_state.upsert import DuckDBUpsertState, UpsertLayout, duckdb_state
from tests.upsert_state.upserts import LAYOUT, entries, fill, put, rows_at, updates


def test_making_a_state_touches_nothing(path: Path) -> None:
    DuckDBUpsertState(path, LAYOUT).close()
    assert not path.parent.exists()


def test_nothing_but_the_file_is_left_behind(path: Path) -> None:
    fill(path)
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("first", [True, False])
def test_deletions_that_left_no_entry_stay_deleted_where_entries_are_kept_for_them(path: Path, *, first: bool) -> None:
    with DuckDBUpsertState(path, LAYOUT, tombstones=first) as state:
        put(state, "t1", (("eu", 1), 1, 0, ("x", 1.0)), (("eu", 2), 1, 0, ("y", 2.0)))
        put(state, "t2", (("eu", 1), 2, 0, None))
    with DuckDBUpsertState(path, LAYOUT, tombstones=not first) as state:
        assert rows_at(state, ("eu", 1), ("eu", 2)) == [(None, None), ("y", 2.0)]
        assert put(state, "t3", (("eu", 1), 3, 0, ("z", 3.0)), (("eu", 2), 2, 0, None)).inserts == 1
        assert rows_at(state, ("eu", 1), ("eu", 2)) == [("z", 3.0), (None, None)]
        assert state.totals().values == 1


def test_a_file_is_opened_anew_after_many_batches(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing frees the memory that DuckDB keeps for each batch."""
    monkeypatch.setattr(duckdb_state, "BATCHES_AT_MOST", 3)
    with DuckDBUpsertState(path, LAYOUT) as state:
        for number in range(1, 8):
            put(state, f"t{number}", (("eu", 1), number, 0, ("x", float(number))))
            if number % 3:
                with pytest.raises(duckdb.Error):  # It is open.
                    duckdb.connect(str(path), read_only=True)
            else:
                duckdb.connect(str(path), read_only=True).close()
        assert rows_at(state, ("eu", 1)) == [("x", 7.0)]


def test_a_put_of_the_keys_just_asked_for_does_not_look_them_up_again(path: Path) -> None:
    fill(path)
    key = ("eu", 1)
    with DuckDBUpsertState(path, LAYOUT) as state, state.batch("u"):
        assert len(entries(state, key)) == 1
        assert state._file.connection is not None
        state._file.connection.execute("DELETE FROM entries_1")  # A look-up now finds nothing.
        assert state.multi_put(updates((key, 2, 0, ("y", 2.0)))).updates == 1
        state._file.connection.execute("DELETE FROM entries_1")
        assert state.multi_put(updates((key, 3, 0, ("z", 3.0)))).inserts == 1


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_batch_that_is_closed_in_its_midst_stores_nothing(path: Path, *, goes_on: bool) -> None:
    fill(path)
    with DuckDBUpsertState(path, LAYOUT) as state:
        with pytest.raises(StateConflictError, match="closed in the midst of a batch"):
            _close_in_the_midst(state, goes_on=goes_on)
        assert (state.token(), state.totals().values) == ("t", 1)
        assert [found[2] for found in entries(state, ("eu", 1), ("eu", 2), ("eu", 3))] == [True, None, None]


def test_a_batch_that_fails_as_it_begins_may_be_begun_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Ctrl-C amid the first query makes a batch fail so."""
    fill(path)
    with DuckDBUpsertState(path, LAYOUT) as state:
        with monkeypatch.context() as patched:
            patched.setattr(duckdb_state, "read_header", _interrupted)
            with pytest.raises(KeyboardInterrupt):
                put(state, "u", (("eu", 2), 2, 0, ("y", 2.0)))
        assert state.token() == "t"
        put(state, "u", (("eu", 2), 2, 0, ("y", 2.0)))
        assert (state.token(), state.totals().values) == ("u", 2)


def _interrupted(*_: object) -> int:
    raise KeyboardInterrupt


def _close_in_the_midst(state: DuckDBUpsertState, *, goes_on: bool) -> None:
    with state.batch("u"):
        state.multi_put(updates((("eu", 2), 2, 0, ("y", 2.0))))
        state.close()
        if goes_on:
            state.multi_put(updates((("eu", 3), 3, 0, ("z", 3.0))))


def test_a_state_of_another_stream_or_of_other_columns_is_refused(path: Path) -> None:
    fill(path)
    for other, match in [
        (UpsertLayout("s2", LAYOUT.key, LAYOUT.row), "stream_id: stored 's1', given 's2'"),
        (
            UpsertLayout("s1", LAYOUT.key, pa.schema([pa.field("name", pa.string())])),
            r"row: stored amount double, given no column\)",
        ),
    ]:
        with pytest.raises(StateConflictError, match=match):
            DuckDBUpsertState(path, other).totals()
    with DuckDBUpsertState(path, LAYOUT) as state:
        assert state.totals().values == 1


def test_the_progress_of_a_stream_is_not_taken_for_its_upsert_state(path: Path) -> None:
    with DuckDBProgressStore(path) as progress:
        assert progress.identity() is None
    with pytest.raises(StateConflictError, match="no table `upsert_format`"):
        DuckDBUpsertState(path, LAYOUT).totals()
    path.unlink()
    fill(path)
    with pytest.raises(StateConflictError, match="no table `format`"):
        DuckDBProgressStore(path).identity()


def test_a_file_that_is_no_database_is_reported_as_damaged_with_how_to_go_on(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"not a database")
    with pytest.raises(
        StateDamagedError, match=r"does not suffice.*and start the stream over with a fresh checkpoint$"
    ):
        DuckDBUpsertState(path, LAYOUT).totals()


def test_a_file_and_its_log_of_two_moments_are_called_damaged(path: Path, tmp_path: Path) -> None:
    """A copy of a running stream's directory may be such; its file lacks what the log goes on from."""
    fill(path)
    copy = tmp_path / "copy" / path.name
    copy.parent.mkdir()
    shutil.copy(path, copy)
    with DuckDBUpsertState(path, LAYOUT) as state:
        put(state, "t2", (("eu", 2), 2, 0, ("y", 1.0)))
    with DuckDBUpsertState(path, LAYOUT) as state:
        put(state, "t3", (("eu", 3), 3, 0, ("z", 1.0)))
        shutil.copy(path.with_name(path.name + ".wal"), copy.with_name(copy.name + ".wal"))
    with pytest.raises(StateDamagedError, match="replaying WAL"):
        DuckDBUpsertState(copy, LAYOUT).totals()


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM upsert_state",
        "INSERT INTO upsert_state FROM upsert_state",
        "UPDATE upsert_state SET row_schema = 'x'",
        "ALTER TABLE upsert_state DROP COLUMN token",
        "DROP TABLE entries_1",
        "ALTER TABLE segments DROP COLUMN dead",
        "DELETE FROM segments",
    ],
)
def test_a_file_that_somebody_has_changed_is_called_damaged_and_not_begun_anew(path: Path, change: str) -> None:
    fill(path)
    with duckdb.connect(str(path)) as edited:
        edited.execute(change)
    with pytest.raises(UpsertStateDamagedError), DuckDBUpsertState(path, LAYOUT) as state:
        put(state, "t2", (("eu", 1), 2, 0, ("y", 2.0)))


def test_a_file_in_which_no_segment_is_noted_any_more_is_not_read_as_if_it_were_empty(path: Path) -> None:
    fill(path)
    with duckdb.connect(str(path)) as edited:
        edited.execute("DELETE FROM segments")
    with (
        pytest.raises(UpsertStateDamagedError, match="`segments` has no rows"),
        DuckDBUpsertState(path, LAYOUT) as state,
    ):
        entries(state, ("eu", 1))


def test_a_newer_format_is_refused_with_both_numbers(path: Path) -> None:
    fill(path)
    with duckdb.connect(str(path)) as newer:
        newer.execute("UPDATE upsert_format SET version = 7")
    words = r"has format version 7, and this release reads format versions 1 to 4.* only to start the stream over"
    with pytest.raises(StateVersionError, match=words):
        DuckDBUpsertState(path, LAYOUT).totals()
