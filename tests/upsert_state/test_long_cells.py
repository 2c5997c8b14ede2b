"""Long cells are put together again from their pieces, in whatever order these are found."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from backfill_state.upsert.long_cells import LONG, cut, mended

HIDDEN: Any = pa.Array.from_buffers(
    pa.list_(pa.int32()),
    4,
    [pa.py_buffer(bytes([0b1101])), pa.py_buffer(np.array([0, 200, 400, 402, 602], np.int32).tobytes())],
    children=[pa.array([*range(400), None, 1, *range(200)], pa.int32())],
)
"""The second list is null and still has numbers below it, as in results of some kernels."""

LISTS: list[Any] = [
    HIDDEN,
    pa.array([[7] * LONG, [1, 2], None, [], [None] * LONG, list(range(100)), [8] * LONG], pa.list_(pa.int64())),
    pa.array([[-1] * LONG, [1] * (LONG // 2), [2] * (LONG // 2 + 1)], pa.list_(pa.int16())),
    pa.array([[Decimal("1.5")] * 33, [Decimal(-2)] * 32, [Decimal(3)] * 99], pa.list_(pa.decimal128(20, 2))),
]


def test_pieces_come_in_any_order() -> None:
    texts = ["".join(str(part) * LONG for part in range(4)), "short", None, "z" * LONG + "y"]
    rows = pa.table({"seq": pa.array([3, 4, 5, 6], pa.int64()), "v0": pa.array(texts, pa.string())})
    short, pieces = cut(rows, ["v0"], np.array([3, 4, 5, 6]))
    assert short["v0"].to_pylist() == [None, "short", None, None]
    assert pieces.num_rows == 6
    backwards = pieces.take(pa.array(range(5, -1, -1), pa.int64()))
    assert mended(short, ["v0"], backwards)["v0"].to_pylist() == texts


@pytest.mark.parametrize("lists", LISTS, ids=lambda array: str(array.type))
@pytest.mark.parametrize("first", [0, 1])
def test_lists_of_numbers_are_cut_where_none_of_them_is_null(lists: pa.Array[Any], first: int) -> None:
    """This holds for slices of lists, and for lists after a text of an odd length."""
    given: Any = lists.slice(first)
    numbers = np.arange(len(given))
    texts = ["x" * (LONG + 3), *[None] * (len(given) - 1)]
    rows = pa.table({"seq": numbers, "v0": pa.array(texts, pa.string()), "v1": given})
    short, pieces = cut(rows, ["v0", "v1"], numbers)
    width = given.type.value_type.bit_width // 8
    for before, after in zip(given.to_pylist(), short["v1"].to_pylist(), strict=True):
        long = before is not None and len(before) * width > LONG and None not in before
        assert after == (None if long else before)
    shuffled = pieces.take(np.random.default_rng(1).permutation(pieces.num_rows))
    found = mended(short, ["v0", "v1"], shuffled)
    assert found["v1"].to_pylist() == given.to_pylist()
    assert found["v0"].to_pylist() == texts
    assert cut(rows, ["v0", "v1"], numbers, lists=False)[0]["v1"].to_pylist() == given.to_pylist()
