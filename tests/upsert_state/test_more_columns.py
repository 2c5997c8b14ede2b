"""States whose rows get more columns, and states whose rows get other columns instead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from backfill_state import AnotherLayoutError, StateLayoutError
from backfill_state.upsert import DuckDBUpsertState
from backfill_state.upsert.long_cells import LONG
from tests.upsert_state.upserts import (
    LAYOUT,
    columns_of,
    diffs_of,
    entries,
    fill,
    keys_of,
    put,
    rows_at,
    rows_of,
    updates,
)

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
        with DuckDBUpsertState(path, LAYOUT) as narrow:  # A state that was only read has changed nothing.
            assert narrow.totals() == before
        assert entries(state, ("eu", 4), ("us", 1)) == [
            (1, 0, True, 16 + 10 + 2 * LONG + 8, (long, 4.0, None)),
            (1, 0, False, 26, (None, None, None)),
        ]
        assert put(state, "t2", (("eu", 0), 2, 0, ("y", 0.0, ["a", None]))).updates == 1
        assert rows_at(state, ("eu", 0), ("eu", 1)) == [
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
        assert rows_at(state, ("eu", 1)) == [("x", 1.0)]


@pytest.mark.parametrize("token", ["t", "next"], ids=["replayed", "new"])
def test_a_batch_without_updates_adds_the_columns(path: Path, token: str) -> None:
    """At the end of a batch, even a replayed one, a stream that carries a column has passed it on."""
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
        assert rows_at(state, ("eu", 1)) == [("y", 2.0, ["a"])]


def test_a_state_that_is_consolidated_goes_on_with_more_columns(path: Path) -> None:
    keys, lines = [("eu", 1), ("eu", 2), ("eu", 2)], [("x", 1.0), ("y", 2.0), ("z", 3.0)]
    with DuckDBUpsertState(path, LAYOUT) as state, state.batch("t1"):
        state.consolidate_chunk(keys_of(keys), rows_of([*lines]), diffs_of(1, 1, 1), completed=False)
    with DuckDBUpsertState(path, EXTENDED) as state:
        with state.batch("t2"):
            rows = rows_of([("y", 2.0, None), ("w", 4.0, ["a"])], EXTENDED)
            state.consolidate_chunk(keys_of([("eu", 2), ("eu", 3)]), rows, diffs_of(-1, 1), completed=True)
        assert rows_at(state, ("eu", 1), ("eu", 2), ("eu", 3)) == [
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
        assert rows_at(state, ("eu", 1)) == [("x", 1.0)]
