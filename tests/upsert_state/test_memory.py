"""The memory that a `DuckDBUpsertState` takes is bounded, however large the rows and batches are."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random

import duckdb
import pyarrow as pa
import pytest

from backfill_state import UpsertStateMemoryError
from backfill_state.upsert import DuckDBUpsertState, Totals, Updates, UpsertLayout
from backfill_state.upsert.long_cells import LONG, mended
from backfill_state.upsert.segments import Segments
from tests.upsert_state.upserts import LAYOUT, columns_of, diffs_of, keys_of, put, rows_of, updates


def test_long_texts_are_put_together_few_at_a_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pieces take memory in addition to the texts made of them."""
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


def test_what_it_takes_can_be_read(path: Path) -> None:
    with DuckDBUpsertState(path, LAYOUT) as state:
        put(state, "t", (("eu", 1), 1, 0, ("x", 1.0)))
        assert state.file_bytes() > 0
        assert state.memory_bytes() > 0


def test_a_file_that_was_removed_takes_nothing(path: Path) -> None:
    with DuckDBUpsertState(path, LAYOUT) as state:
        put(state, "t", (("eu", 1), 1, 0, ("x", 1.0)))
        shutil.rmtree(path.parent)
        assert state.file_bytes() == 0


def test_memory_is_capped_and_what_does_not_fit_goes_to_disk(path: Path) -> None:
    layout = UpsertLayout("s", pa.schema([pa.field("id", pa.int64())]), pa.schema([pa.field("text", pa.string())]))
    count = 96_000
    keys = pa.table({"id": pa.array(range(count), pa.int64())})
    rows = pa.table({"text": pa.array([f"{number:0500}" for number in range(count)])})
    with DuckDBUpsertState(path, layout, memory_limit="48MB") as state:
        with state.batch("t"):
            state.consolidate_chunk(keys, rows, diffs_of(*[1] * count), completed=True)
        assert state.totals() == Totals(count, 0, count * (16 + 8 + 500))
        assert state.memory_bytes() <= 48_000_000
        assert state.multi_get(keys.slice(count - 3)).rows == rows.slice(count - 3)
    assert not path.with_name(path.name + ".tmp").exists()


def test_rows_of_some_kilobytes_fit_into_the_memory_that_a_stream_has_at_the_least(path: Path) -> None:
    """With texts of 4 kB in one column, DuckDB could not write a checkpoint even with twice as much memory."""
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
    """By the size of the average entry, all of them would fit."""
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


def test_too_little_memory_is_reported(path: Path) -> None:
    layout = UpsertLayout("s", pa.schema([pa.field("id", pa.int64())]), pa.schema([pa.field("text", pa.string())]))
    with (
        DuckDBUpsertState(path, layout, memory_limit="1MB") as state,
        pytest.raises(UpsertStateMemoryError, match="needs more memory than DuckDB may take"),
        state.batch("t"),
    ):
        state.multi_put(updates(*(((number,), 1, 1, (f"{number:0500}",)) for number in range(5000)), layout=layout))
