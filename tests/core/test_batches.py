"""Record batches cut anew."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from backfill.batches import coalesced

ROW_BYTES = 8


def numbered(counts: list[int]) -> list[pa.RecordBatch]:
    """Batches of so many rows, numbered one after the other."""
    starts = [sum(counts[:at]) for at in range(len(counts))]
    return [
        pa.record_batch({"n": pa.array(range(start, start + count), pa.int64())})
        for start, count in zip(starts, counts, strict=True)
    ]


@given(st.lists(st.integers(0, 12)), st.integers(1, 20), st.integers(1, 20 * ROW_BYTES))
def test_coalesced_batches_have_the_same_rows_and_are_as_large_as_they_may_be(
    counts: list[int], rows: int, size: int
) -> None:
    found = list(coalesced(numbered(counts), rows, size))
    assert [number for batch in found for number in batch["n"].to_pylist()] == list(range(sum(counts)))
    most = min(rows, size // ROW_BYTES)
    ends = [sum(counts[: at + 1]) for at in range(len(counts))]
    spans = [(batch["n"][0].as_py(), batch["n"][-1].as_py() + 1) for batch in found]
    for first, end in spans:
        assert end - first <= most or not any(first < other < end for other in ends), "larger, and put together"
    for (first, end), _ in pairwise(spans):
        following = min(other for other in ends if other > end)
        assert following - first > most, "the next one would have been in it too"
