"""The file of a `DuckDBUpsertState`: who may have it, how it is cleaned, and what happens when it is not one."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import duckdb
import pyarrow as pa
import pytest

from backfill_state import (
    AnotherLayoutError,
    DuckDBProgressStore,
    StateConflictError,
    StateDamagedError,
    StateLayoutError,
    StateVersionError,
    UpsertStateDamagedError,
    UpsertStateMemoryError,
)
from backfill_state.upsert import DuckDBUpsertState, Totals, Updates, UpsertLayout, duckdb_state
from backfill_state.upsert.long_cells import LONG, mended
from backfill_state.upsert.segments import Segments
from tests.upsert_state.upserts import LAYOUT, columns_of, diffs_of, entries, keys_of, put, rows_of, updates


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "upsert.duckdb"


def fill(path: Path) -> None:
    with DuckDBUpsertState(path, LAYOUT) as state:
        put(state, "t", (("eu", 1), 1, 0, ("x", 1.0)))


def test_making_a_state_touches_nothing(path: Path) -> None:
    DuckDBUpsertState(path, LAYOUT).close()
    assert not path.parent.exists()


def test_nothing_but_the_file_is_left_behind(path: Path) -> None:
    fill(path)
    assert list(path.parent.iterdir()) == [path]


def test_what_is_replaced_is_cleaned_away(path: Path) -> None:
    with DuckDBUpsertState(path, LAYOUT, segment_entries=10) as state:
        for order in range(20):
            put(state, f"t{order}", *((("eu", number), order, 0, ("x", 1.0)) for number in range(order % 3, 6)))
        assert state.totals().values == 6
        assert [entry[0] for entry in entries(state, *(("eu", number) for number in range(6)))] == [18, 19, *[19] * 4]
    with duckdb.connect(str(path), read_only=True) as plain:
        [(segments, held)] = plain.execute("SELECT count(*), sum(entries) FROM segments").fetchall()
        assert held < 30
        assert segments <= 3
        assert plain.execute("SELECT count(*) FROM duckdb_tables() WHERE table_name LIKE 'entries_%'").fetchall() == [
            (segments,)
        ]


def test_batches_larger_than_a_segment_leave_no_more_than_twice_what_lives(path: Path) -> None:
    """Each begins three segments; with one cleaned a batch the file would grow without end."""
    keys = [("eu", number) for number in range(12)]
    held = []
    for order in range(12):
        with DuckDBUpsertState(path, LAYOUT, segment_entries=4, chunk_rows=4) as state:
            put(state, f"t{order}", *((key, order, 0, ("x", float(order))) for key in keys))
            assert [entry[0] for entry in entries(state, *keys)] == [order] * len(keys)
        with duckdb.connect(str(path), read_only=True) as plain:
            held.append(plain.execute("SELECT sum(entries)::BIGINT FROM segments").fetchall()[0][0])
    assert max(held) <= 2 * len(keys) + 4
    with DuckDBUpsertState(path, LAYOUT, segment_entries=4, tombstones=False) as state:
        put(state, "gone", *((key, 12, 0, None) for key in keys))
        assert state.totals().values == 0
    with duckdb.connect(str(path), read_only=True) as plain:
        assert plain.execute("SELECT sum(entries)::BIGINT FROM segments").fetchall()[0][0] <= 4


def test_keys_that_are_written_again_and_again_do_not_fill_a_segment_first(path: Path) -> None:
    """Each look-up of them would read all that they have been."""
    keys = [("eu", number) for number in range(4)]
    held = []
    with DuckDBUpsertState(path, LAYOUT, segment_entries=640) as state:
        put(state, "cold", *((("us", number), 0, 0, ("y", 1.0)) for number in range(8)))
        for order in range(24):
            put(state, f"t{order}", *((key, order, 0, ("x", float(order))) for key in keys))
            assert [entry[0] for entry in entries(state, *keys)] == [order] * len(keys)
            if order % 4 == 0:
                state.close()
                with duckdb.connect(str(path), read_only=True) as plain:
                    held.append(plain.execute("SELECT sum(entries)::BIGINT FROM segments").fetchall()[0][0])
    assert 20 < max(held) <= 8 + len(keys) + 40


@pytest.mark.parametrize("tombstones", [True, False])
def test_large_rows_that_come_and_go_among_small_ones_are_cleaned_away(path: Path, *, tombstones: bool) -> None:
    """Few entries are dead, and nearly all of the bytes."""
    with DuckDBUpsertState(path, LAYOUT, segment_entries=1000, segment_bytes=10_000, tombstones=tombstones) as state:
        for order in range(40):
            large = (("eu", 0), order, 0, ("x" * 4000, 1.0) if order % 2 == 0 else None)
            put(state, f"t{order}", large, *((("us", 4 * order + at), order, 0, ("y", 1.0)) for at in range(4)))
        assert state.totals().values == 160
    with duckdb.connect(str(path), read_only=True) as plain:
        [(segments, held, dead)] = plain.execute(
            "SELECT count(*), sum(size)::BIGINT, sum(dead_size)::BIGINT FROM segments"
        ).fetchall()
    assert dead * 2 <= held + 20_000
    assert held < 40_000
    assert segments <= 4


@pytest.mark.parametrize("first", [True, False])
def test_deletions_that_left_no_entry_stay_deleted_where_entries_are_kept_for_them(path: Path, *, first: bool) -> None:
    with DuckDBUpsertState(path, LAYOUT, tombstones=first) as state:
        put(state, "t1", (("eu", 1), 1, 0, ("x", 1.0)), (("eu", 2), 1, 0, ("y", 2.0)))
        put(state, "t2", (("eu", 1), 2, 0, None))
    with DuckDBUpsertState(path, LAYOUT, tombstones=not first) as state:
        assert [found[-1] for found in entries(state, ("eu", 1), ("eu", 2))] == [(None, None), ("y", 2.0)]
        assert put(state, "t3", (("eu", 1), 3, 0, ("z", 3.0)), (("eu", 2), 2, 0, None)).inserts == 1
        assert [found[-1] for found in entries(state, ("eu", 1), ("eu", 2))] == [("z", 3.0), (None, None)]
        assert state.totals().values == 1


def test_long_texts_go_with_their_rows(path: Path) -> None:
    """Each takes a segment of its own, and no piece is left of what was replaced, cleared or cleaned away."""
    with DuckDBUpsertState(path, LAYOUT, segment_entries=4, segment_bytes=3 * LONG, tombstones=False) as state:
        for order in range(9):
            put(state, f"t{order}", *((("eu", number), order, 0, (f"{order}" * 2000, 1.0)) for number in range(3)))
        put(state, "deleted", (("eu", 2), 9, 0, None))
        found = [entry[-1] for entry in entries(state, ("eu", 0), ("eu", 1), ("eu", 2))]
        assert found == [("8" * 2000, 1.0), ("8" * 2000, 1.0), (None, None)]
        long = _long_cells(state)
        assert len(long) <= 3
        assert sum(long.values()) <= 9 * 4
        with state.batch("cleared"):
            state.clear()
        assert list(_long_cells(state).values()) == [0]


def test_long_texts_are_put_together_few_at_a_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their pieces take memory beside what they make."""
    asked: list[int] = []

    def and_noted(found: pa.Table, cells: Sequence[str], pieces: pa.Table) -> pa.Table:
        asked.append(found.num_rows)
        return mended(found, cells, pieces)

    monkeypatch.setattr("backfill_state.upsert.segments.mended", and_noted)
    monkeypatch.setattr("backfill_state.upsert.segments._READ_AT_ONCE", 5 * LONG)
    rows = [("eu", number) for number in range(8)]
    with DuckDBUpsertState(path, LAYOUT, tombstones=False) as state:
        put(state, "t", *((key, 1, 0, ("x" * (2 * LONG), 1.0)) for key in rows))
        found = state.multi_get(keys_of(rows)).rows
    assert found.column(0).to_pylist() == ["x" * (2 * LONG)] * 8
    assert sum(asked) == 8
    assert max(asked) <= 3


def _long_cells(state: DuckDBUpsertState) -> dict[str, int]:
    """How many pieces there are, by table of a segment."""
    state.close()
    with duckdb.connect(str(state.path), read_only=True) as plain:
        names = "SELECT table_name FROM duckdb_tables() WHERE regexp_matches(table_name, '^long_[0-9]+$')"
        tables = [name for (name,) in plain.execute(names).fetchall()]
        return {name: plain.execute(f'SELECT count(*) FROM "{name}"').fetchall()[0][0] for name in tables}


EXTENDED = replace(
    LAYOUT, row=columns_of(*zip(LAYOUT.row.names, LAYOUT.row.types, strict=True), ("tags", pa.list_(pa.string())))
)


def test_a_state_goes_on_with_more_columns_after_those_that_it_has(path: Path) -> None:
    long = "x" * (2 * LONG)
    with DuckDBUpsertState(path, LAYOUT, segment_entries=2) as state:
        put(
            state,
            "t1",
            *((("eu", number), 1, 0, (long, float(number))) for number in range(5)),
            (("us", 1), 1, 0, None),
        )
        before = state.totals()
    with DuckDBUpsertState(path, EXTENDED, segment_entries=2) as state:
        assert (state.token(), state.totals()) == ("t1", before)
        state.close()
        with DuckDBUpsertState(path, LAYOUT) as narrow:  # What only looked has changed nothing.
            assert narrow.totals() == before
        assert entries(state, ("eu", 4), ("us", 1)) == [
            (1, 0, True, 16 + 10 + 2 * LONG + 8, (long, 4.0, None)),
            (1, 0, False, 26, (None, None, None)),
        ]
        assert put(state, "t2", (("eu", 0), 2, 0, ("y", 0.0, ["a", None]))).updates == 1
        assert [found[-1] for found in entries(state, ("eu", 0), ("eu", 1))] == [
            ("y", 0.0, ["a", None]),
            (long, 1.0, None),
        ]
    with DuckDBUpsertState(path, LAYOUT) as state, pytest.raises(AnotherLayoutError, match="tags"):
        state.token()


def test_a_batch_that_is_rolled_back_takes_the_columns_back(path: Path) -> None:
    fill(path)
    wrong = updates((("eu", 1), 2, 0, ("y", 2.0)))
    with DuckDBUpsertState(path, EXTENDED) as state, pytest.raises(StateLayoutError), state.batch("t2"):
        state.multi_put(wrong)
    with DuckDBUpsertState(path, LAYOUT) as state:
        assert entries(state, ("eu", 1))[0][-1] == ("x", 1.0)


@pytest.mark.parametrize("token", ["t", "next"], ids=["replayed", "new"])
def test_a_batch_without_updates_adds_the_columns(path: Path, token: str) -> None:
    """Whoever carries a column has passed it on by the end of the batch, be it a replay."""
    fill(path)
    with DuckDBUpsertState(path, EXTENDED) as state, state.batch(token):
        pass
    with DuckDBUpsertState(path, LAYOUT) as state, pytest.raises(AnotherLayoutError):
        state.token()
    with DuckDBUpsertState(path, EXTENDED) as state:
        assert (state.token(), entries(state, ("eu", 1))[0][-1]) == (token, ("x", 1.0, None))


def test_columns_may_come_with_a_batch_that_clears(path: Path) -> None:
    fill(path)
    with DuckDBUpsertState(path, EXTENDED) as state:
        with state.batch("t2"):
            state.clear()
            state.multi_put(updates((("eu", 1), 1, 0, ("y", 2.0, ["a"])), layout=EXTENDED))
        assert entries(state, ("eu", 1))[0][-1] == ("y", 2.0, ["a"])


def test_a_state_that_is_consolidated_goes_on_with_more_columns(path: Path) -> None:
    keys, lines = [("eu", 1), ("eu", 2), ("eu", 2)], [("x", 1.0), ("y", 2.0), ("z", 3.0)]
    with DuckDBUpsertState(path, LAYOUT) as state, state.batch("t1"):
        state.consolidate_chunk(keys_of(keys), rows_of([*lines]), diffs_of(1, 1, 1), completed=False)
    with DuckDBUpsertState(path, EXTENDED) as state:
        with state.batch("t2"):
            rows = rows_of([("y", 2.0, None), ("w", 4.0, ["a"])], EXTENDED)
            state.consolidate_chunk(keys_of([("eu", 2), ("eu", 3)]), rows, diffs_of(-1, 1), completed=True)
        assert [found[-1] for found in entries(state, ("eu", 1), ("eu", 2), ("eu", 3))] == [
            ("x", 1.0, None),
            ("z", 3.0, None),
            ("w", 4.0, ["a"]),
        ]


OTHERS = {
    "another order": columns_of(("amount", pa.float64()), ("name", pa.string()), ("tags", pa.list_(pa.string()))),
    "another type": columns_of(("name", pa.string()), ("amount", pa.float32()), ("tags", pa.list_(pa.string()))),
    "one less": columns_of(("name", pa.string())),
    "another one first": columns_of(("new", pa.int8()), ("name", pa.string()), ("amount", pa.float64())),
}


@pytest.mark.parametrize("row", OTHERS.values(), ids=OTHERS)
def test_a_state_does_not_go_on_with_other_columns(path: Path, row: pa.Schema) -> None:
    fill(path)
    with DuckDBUpsertState(path, replace(LAYOUT, row=row)) as state, pytest.raises(AnotherLayoutError):
        state.token()
    with DuckDBUpsertState(path, LAYOUT) as state:
        assert entries(state, ("eu", 1))[0][-1] == ("x", 1.0)


def test_a_full_segment_is_read_from_the_file_from_then_on(path: Path) -> None:
    with DuckDBUpsertState(path, LAYOUT, segment_entries=2) as state:
        put(state, "t1", (("eu", 1), 1, 0, ("x", 1.0)), (("eu", 2), 1, 0, ("y", 2.0)))
        with pytest.raises(duckdb.Error):  # It is open.
            duckdb.connect(str(path), read_only=True)
        put(state, "t2", (("eu", 1), 2, 0, ("z", 3.0)))
        duckdb.connect(str(path), read_only=True).close()
        assert [found[-1] for found in entries(state, ("eu", 1), ("eu", 2))] == [("z", 3.0), ("y", 2.0)]
        put(state, "t2", (("eu", 1), 3, 0, ("no", 0.0)))
        assert state.totals().values == 2


def test_a_file_is_opened_anew_after_many_batches(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB's memory of each batch goes with the closing."""
    monkeypatch.setattr(duckdb_state, "BATCHES_AT_MOST", 3)
    with DuckDBUpsertState(path, LAYOUT) as state:
        for number in range(1, 8):
            put(state, f"t{number}", (("eu", 1), number, 0, ("x", float(number))))
            if number % 3:
                with pytest.raises(duckdb.Error):  # It is open.
                    duckdb.connect(str(path), read_only=True)
            else:
                duckdb.connect(str(path), read_only=True).close()
        assert entries(state, ("eu", 1))[0][-1] == ("x", 7.0)


def test_a_put_of_the_keys_just_asked_for_does_not_look_them_up_again(path: Path) -> None:
    fill(path)
    key = ("eu", 1)
    with DuckDBUpsertState(path, LAYOUT) as state, state.batch("u"):
        assert len(entries(state, key)) == 1
        assert state._file.connection is not None
        state._file.connection.execute("DELETE FROM entries_1")  # So that who looks finds nothing.
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
    """As by a Ctrl-C amid its first query."""
    fill(path)
    with DuckDBUpsertState(path, LAYOUT) as state:
        with monkeypatch.context() as patched:
            patched.setattr(Segments, "newest", _interrupted)
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


def test_consolidated_rows_fill_segments_too(path: Path) -> None:
    keys = [("eu", number) for number in range(25)]
    with DuckDBUpsertState(path, LAYOUT, segment_entries=10, chunk_rows=7) as state:
        with state.batch("t"):
            rows = rows_of([("x", 1.0)] * 25)
            state.consolidate_chunk(keys_of(list(keys)), rows, diffs_of(*[1] * 25), completed=True)
        assert all(entry[2] for entry in entries(state, *keys))
        state.close()
        with duckdb.connect(str(path), read_only=True) as plain:
            filled = plain.execute("SELECT entries FROM segments ORDER BY segment").fetchall()
            assert filled == [(10,), (10,), (5,)]
        put(state, "u", *((key, 1, 0, None) for key in keys))
        assert (state.totals().values, state.totals().tombstones) == (0, 25)
    with duckdb.connect(str(path), read_only=True) as plain:
        assert plain.execute("SELECT count(*) FROM segments WHERE entries > 32").fetchall() == [(0,)]


def test_long_consolidated_rows_fill_segments_by_their_bytes(path: Path) -> None:
    keys = [("eu", number) for number in range(24)]
    rows = [("x" * (number % 9 * 20), 1.0) for number in range(24)]
    with DuckDBUpsertState(path, LAYOUT, segment_bytes=1000) as state:
        with state.batch("t"):
            state.consolidate_chunk(keys_of(list(keys)), rows_of(list(rows)), diffs_of(*[1] * 24), completed=True)
        assert [entry[-1] for entry in entries(state, *keys)] == rows
    with duckdb.connect(str(path), read_only=True) as plain:
        filled = plain.execute("SELECT entries FROM segments ORDER BY segment").fetchall()
        [(size,)] = plain.execute("SELECT sum(size)::BIGINT FROM segments").fetchall()
    assert 2000 < size < 3000
    assert filled == [(10,), (10,), (4,)]


def test_what_it_takes_can_be_read(path: Path) -> None:
    with DuckDBUpsertState(path, LAYOUT) as state:
        put(state, "t", (("eu", 1), 1, 0, ("x", 1.0)))
        usage = state.usage()
    assert usage.file > 0
    assert usage.memory > 0


def test_a_file_that_was_removed_takes_nothing(path: Path) -> None:
    with DuckDBUpsertState(path, LAYOUT) as state:
        put(state, "t", (("eu", 1), 1, 0, ("x", 1.0)))
        shutil.rmtree(path.parent)
        assert state.usage().file == 0


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


def test_a_file_that_is_no_database_is_called_damaged_and_says_how_to_go_on(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"not a database")
    with pytest.raises(
        StateDamagedError, match=r"does not suffice.*and start the stream over with a fresh checkpoint$"
    ):
        DuckDBUpsertState(path, LAYOUT).totals()


def test_a_file_and_its_log_of_two_moments_are_called_damaged(path: Path, tmp_path: Path) -> None:
    """As where a running stream's directory is copied; the file has less than the log goes on from."""
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


def test_memory_is_capped_and_what_does_not_fit_goes_to_disk(path: Path) -> None:
    layout = UpsertLayout("s", pa.schema([pa.field("id", pa.int64())]), pa.schema([pa.field("text", pa.string())]))
    count = 96_000
    keys = pa.table({"id": pa.array(range(count), pa.int64())})
    rows = pa.table({"text": pa.array([f"{number:0500}" for number in range(count)])})
    with DuckDBUpsertState(path, layout, memory_limit="48MB") as state:
        with state.batch("t"):
            state.consolidate_chunk(keys, rows, diffs_of(*[1] * count), completed=True)
        assert state.totals() == Totals(count, 0, count * (16 + 8 + 500))
        assert state.usage().memory <= 48_000_000
        assert state.multi_get(keys.slice(count - 3)).rows == rows.slice(count - 3)
    assert not path.with_name(path.name + ".tmp").exists()


def test_rows_of_some_kilobytes_fit_into_the_memory_that_a_stream_has_at_the_least(path: Path) -> None:
    """Of texts of 4 kB in one column DuckDB could not write a checkpoint, with twice as much."""
    layout = UpsertLayout("s", pa.schema([pa.field("id", pa.int64())]), pa.schema([pa.field("text", pa.string())]))
    random = Random(1)
    texts = pa.array([random.randbytes(2000).hex() for _ in range(12_000)])
    keys = pa.table({"id": pa.array(range(48_000), pa.int64())})
    rows = pa.table({"text": pa.concat_arrays([texts] * 4)})
    ones = pa.array([1] * 12_000, pa.int64())
    heads = pa.table({"order_key": ones, "order_tie": ones, "present": pa.array([True] * 12_000)})
    with DuckDBUpsertState(path, layout, memory_limit="256MB") as state:
        for at in range(0, 48_000, 12_000):
            with state.batch(f"t{at}"):
                state.multi_put(Updates(keys.slice(at, 12_000), heads, rows.slice(at, 12_000)))
        some = state.multi_get(keys, most_bytes=1 << 20)
        assert some.rows == rows.slice(0, len(some.rows))
        assert 200 <= len(some.rows) <= (1 << 20) // 4000
        assert state.multi_get(keys.slice(47_000)).rows == rows.slice(47_000)


@pytest.mark.parametrize(
    ("kind", "large"),
    [
        (pa.string(), ["x" * 8] * 100),
        (pa.int64(), [*range(100)]),
        (pa.int64(), [None, *range(99)]),
    ],
    ids=["of texts", "that are cut", "with a null"],
)
def test_of_large_lists_among_small_ones_only_those_that_fit_are_read(
    path: Path, monkeypatch: pytest.MonkeyPatch, kind: pa.DataType, large: list[object]
) -> None:
    """By the average entry, all of them would fit."""
    key, row = columns_of(("id", pa.int64())), columns_of(("list", pa.list_(kind)))
    read: list[int] = []
    entries_of = Segments.entries

    def watched(segments: Segments, connection: duckdb.DuckDBPyConnection, keys: pa.RecordBatch) -> pa.Table:
        read.append(keys.num_rows)
        return entries_of(segments, connection, keys)

    with DuckDBUpsertState(path, UpsertLayout("s", key, row)) as state:
        put(state, "small", *(((number,), 1, 0, (None,)) for number in range(100, 3000)))
        put(state, "large", *(((number,), 1, 0, (large,)) for number in range(100)))
        keys = keys_of([(at,) for at in range(100)], state.layout)
        rows = rows_of([(large,)] * 100, state.layout)
        size = state.multi_get(keys).stats.size // 100
        monkeypatch.setattr(Segments, "entries", watched)
        assert state.multi_get(keys, most_bytes=10 * size).rows == rows.slice(0, 10)
        assert state.multi_get(keys, most_bytes=10 * size - 1).rows == rows.slice(0, 9)
        assert state.multi_get(keys, most_bytes=1).rows == rows.slice(0, 1)
        assert state.multi_get(keys.slice(0, 0), most_bytes=1).rows == rows.slice(0, 0)
    assert read == [10, 9, 1, 0]


def test_what_was_put_is_let_go_of_while_the_batch_goes_on(path: Path) -> None:
    """DuckDB keeps what was registered in a transaction until that ends, and a batch may be larger than memory."""
    count, text = 500, "x" * 20_000
    keys = [(f"{number:0400}", number) for number in range(count)]
    given = updates(*((key, 1, 0, (text, 1.0)) for key in keys))
    with DuckDBUpsertState(path, LAYOUT) as state, state.batch("t"):
        before = pa.total_allocated_bytes()
        for _ in range(3):
            state.multi_get(given.keys)
            state.multi_put(given)
        assert pa.total_allocated_bytes() - before < given.keys.nbytes


def test_too_little_memory_is_said(path: Path) -> None:
    layout = UpsertLayout("s", pa.schema([pa.field("id", pa.int64())]), pa.schema([pa.field("text", pa.string())]))
    with (
        DuckDBUpsertState(path, layout, memory_limit="1MB") as state,
        pytest.raises(UpsertStateMemoryError, match="needs more memory than DuckDB may take"),
        state.batch("t"),
    ):
        state.multi_put(updates(*(((number,), 1, 1, (f"{number:0500}",)) for number in range(5000)), layout=layout))
