"""How a `DuckDBUpsertState` fills segments, and cleans away what is dead in them."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from backfill_state.upsert import DuckDBUpsertState
from backfill_state.upsert.long_cells import LONG
from tests.upsert_state.upserts import LAYOUT, asked, diffs_of, entries, keys_of, put, rows_at, rows_of

FILLED = "SELECT entries FROM segments ORDER BY segment"


def held_by(path: Path) -> int:
    """Returns how many entries the file has, including dead ones."""
    [(count,)] = asked(path, "SELECT sum(entries)::BIGINT FROM segments")
    return int(count)


def test_what_is_replaced_is_cleaned_away(path: Path) -> None:
    with DuckDBUpsertState(path, LAYOUT, segment_entries=10) as state:
        for order in range(20):
            put(state, f"t{order}", *((("eu", number), order, 0, ("x", 1.0)) for number in range(order % 3, 6)))
        assert state.totals().values == 6
        assert [entry[0] for entry in entries(state, *(("eu", number) for number in range(6)))] == [18, 19, *[19] * 4]
    [(segments, held)] = asked(path, "SELECT count(*), sum(entries) FROM segments")
    assert held < 30
    assert segments <= 3
    tables = "SELECT count(*) FROM duckdb_tables() WHERE table_name LIKE 'entries_%'"
    assert asked(path, tables) == [(segments,)]


def test_batches_larger_than_a_segment_leave_no_more_than_twice_what_lives(path: Path) -> None:
    """Each batch begins three segments; if only one were cleaned in a batch, the file would grow without end."""
    keys = [("eu", number) for number in range(12)]
    held = []
    for order in range(12):
        with DuckDBUpsertState(path, LAYOUT, segment_entries=4, chunk_rows=4) as state:
            put(state, f"t{order}", *((key, order, 0, ("x", float(order))) for key in keys))
            assert [entry[0] for entry in entries(state, *keys)] == [order] * len(keys)
        held.append(held_by(path))
    assert max(held) <= 2 * len(keys) + 4
    with DuckDBUpsertState(path, LAYOUT, segment_entries=4, tombstones=False) as state:
        put(state, "gone", *((key, 12, 0, None) for key in keys))
        assert state.totals().values == 0
    assert held_by(path) <= 4


def test_keys_that_are_written_again_and_again_do_not_fill_a_segment_first(path: Path) -> None:
    """Otherwise each look-up of them would read all their former entries."""
    keys = [("eu", number) for number in range(4)]
    held = []
    with DuckDBUpsertState(path, LAYOUT, segment_entries=640) as state:
        put(state, "cold", *((("us", number), 0, 0, ("y", 1.0)) for number in range(8)))
        for order in range(24):
            put(state, f"t{order}", *((key, order, 0, ("x", float(order))) for key in keys))
            assert [entry[0] for entry in entries(state, *keys)] == [order] * len(keys)
            if order % 4 == 0:
                state.close()
                held.append(held_by(path))
    assert 20 < max(held) <= 8 + len(keys) + 40


@pytest.mark.parametrize("tombstones", [True, False])
def test_large_rows_that_come_and_go_among_small_ones_are_cleaned_away(path: Path, *, tombstones: bool) -> None:
    """Few of the entries are dead, but nearly all of the bytes."""
    with DuckDBUpsertState(path, LAYOUT, segment_entries=1000, segment_bytes=10_000, tombstones=tombstones) as state:
        for order in range(40):
            large = (("eu", 0), order, 0, ("x" * 4000, 1.0) if order % 2 == 0 else None)
            put(state, f"t{order}", large, *((("us", 4 * order + at), order, 0, ("y", 1.0)) for at in range(4)))
        assert state.totals().values == 160
    sums = "SELECT count(*), sum(size)::BIGINT, sum(dead_size)::BIGINT FROM segments"
    [(segments, held, dead)] = asked(path, sums)
    assert dead * 2 <= held + 20_000
    assert held < 40_000
    assert segments <= 4


def test_long_texts_go_with_their_rows(path: Path) -> None:
    """Each text takes a segment of its own, and no piece is left of one that was replaced, cleared or cleaned away."""
    with DuckDBUpsertState(path, LAYOUT, segment_entries=4, segment_bytes=3 * LONG, tombstones=False) as state:
        for order in range(9):
            put(state, f"t{order}", *((("eu", number), order, 0, (f"{order}" * 2000, 1.0)) for number in range(3)))
        put(state, "deleted", (("eu", 2), 9, 0, None))
        found = rows_at(state, ("eu", 0), ("eu", 1), ("eu", 2))
        assert found == [("8" * 2000, 1.0), ("8" * 2000, 1.0), (None, None)]
        long = _long_cells(state)
        assert len(long) <= 3
        assert sum(long.values()) <= 9 * 4
        with state.batch("cleared"):
            state.clear()
        assert list(_long_cells(state).values()) == [0]


def _long_cells(state: DuckDBUpsertState) -> dict[str, int]:
    """Returns the number of pieces in each segment's table of them."""
    state.close()
    names = "SELECT table_name FROM duckdb_tables() WHERE regexp_matches(table_name, '^long_[0-9]+$')"
    tables = [name for (name,) in asked(state.path, names)]
    return {name: asked(state.path, f'SELECT count(*) FROM "{name}"')[0][0] for name in tables}


def test_a_full_segment_is_read_from_the_file_from_then_on(path: Path) -> None:
    with DuckDBUpsertState(path, LAYOUT, segment_entries=2) as state:
        put(state, "t1", (("eu", 1), 1, 0, ("x", 1.0)), (("eu", 2), 1, 0, ("y", 2.0)))
        with pytest.raises(duckdb.Error):  # It is open.
            duckdb.connect(str(path), read_only=True)
        put(state, "t2", (("eu", 1), 2, 0, ("z", 3.0)))
        duckdb.connect(str(path), read_only=True).close()
        assert rows_at(state, ("eu", 1), ("eu", 2)) == [("z", 3.0), ("y", 2.0)]
        put(state, "t2", (("eu", 1), 3, 0, ("no", 0.0)))
        assert state.totals().values == 2


def test_consolidated_rows_fill_segments_too(path: Path) -> None:
    keys = [("eu", number) for number in range(25)]
    with DuckDBUpsertState(path, LAYOUT, segment_entries=10, chunk_rows=7) as state:
        with state.batch("t"):
            rows = rows_of([("x", 1.0)] * 25)
            state.consolidate_chunk(keys_of(list(keys)), rows, diffs_of(*[1] * 25), completed=True)
        assert all(entry[2] for entry in entries(state, *keys))
        state.close()
        assert asked(path, FILLED) == [(10,), (10,), (5,)]
        put(state, "u", *((key, 1, 0, None) for key in keys))
        assert (state.totals().values, state.totals().tombstones) == (0, 25)
    assert asked(path, "SELECT count(*) FROM segments WHERE entries > 32") == [(0,)]


def test_long_consolidated_rows_fill_segments_by_their_bytes(path: Path) -> None:
    keys = [("eu", number) for number in range(24)]
    rows = [("x" * (number % 9 * 20), 1.0) for number in range(24)]
    with DuckDBUpsertState(path, LAYOUT, segment_bytes=1000) as state:
        with state.batch("t"):
            state.consolidate_chunk(keys_of(list(keys)), rows_of(list(rows)), diffs_of(*[1] * 24), completed=True)
        assert rows_at(state, *keys) == rows
    [(size,)] = asked(path, "SELECT sum(size)::BIGINT FROM segments")
    assert 2000 < size < 3000
    assert asked(path, FILLED) == [(10,), (10,), (4,)]
