"""Record batches cut anew."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from backfill.arrow.batches import as_one_batch, coalesced

ROW_BYTES = 8


def numbered(counts: list[int]) -> list[pa.RecordBatch]:
    """Returns batches with these counts of rows, numbered one after the other."""
    starts = [sum(counts[:at]) for at in range(len(counts))]
    return [
        pa.record_batch({"n": pa.array(range(start, start + count), pa.int64())})
        for start, count in zip(starts, counts, strict=True)
    ]


@given(st.lists(st.integers(0, 12)), st.integers(1, 20))
def test_coalesced_batches_have_all_rows_so_many_in_each(counts: list[int], rows: int) -> None:
    found = list(coalesced(numbered(counts), rows))
    assert numbers(found) == list(range(sum(counts)))
    assert [batch.num_rows for batch in found[:-1]] == [rows] * (len(found) - 1)
    assert not found or 0 < found[-1].num_rows <= rows


@given(st.lists(st.integers(0, 12)), st.integers(1, 20), st.integers(1, 20 * ROW_BYTES))
def test_coalesced_batches_take_no_more_bytes_than_they_may(counts: list[int], rows: int, size: int) -> None:
    found = list(coalesced(numbered(counts), rows, size))
    assert numbers(found) == list(range(sum(counts)))
    ends = [sum(counts[: at + 1]) for at in range(len(counts))]
    for batch in found:
        first, end = batch["n"][0].as_py(), batch["n"][-1].as_py() + 1
        assert batch.num_rows <= rows
        assert batch.nbytes <= size or not any(first < other < end for other in ends), "larger, and put together"


def numbers(batches: list[pa.RecordBatch]) -> list[int | None]:
    return [number for batch in batches for number in batch["n"].to_pylist()]


def test_batches_without_columns_keep_their_number_of_rows() -> None:
    bare = numbered([3])[0].select([])
    assert [batch.num_rows for batch in coalesced([bare, bare], 4)] == [4, 2]


def test_as_many_rows_as_fit_are_put_together_also_of_a_larger_batch() -> None:
    found = coalesced(numbered([3, 9]), 5, 5 * ROW_BYTES)
    assert [batch.num_rows for batch in found] == [5, 5, 2]


def test_a_table_whose_columns_lie_in_different_pieces_is_one_batch_of_all_its_rows() -> None:
    table = pa.table({"a": pa.chunked_array([[1, 2, 3]]), "b": pa.chunked_array([[1], [2, 3]])})
    assert as_one_batch(table).to_pydict() == {"a": [1, 2, 3], "b": [1, 2, 3]}
