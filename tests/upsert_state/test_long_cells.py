"""Long cells are put together again from their pieces, in whatever order these are found."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from backfill_state.upsert.long_cells import LONG, cut, mended


def test_pieces_come_in_any_order() -> None:
    texts = ["".join(str(part) * LONG for part in range(4)), "short", None, "z" * LONG + "y"]
    rows = pa.table({"seq": pa.array([3, 4, 5, 6], pa.int64()), "v0": pa.array(texts, pa.string())})
    short, pieces = cut(rows, ["v0"], np.array([3, 4, 5, 6]))
    assert short["v0"].to_pylist() == [None, "short", None, None]
    assert pieces.num_rows == 6
    backwards = pieces.take(pa.array(range(5, -1, -1), pa.int64()))
    assert mended(short, ["v0"], backwards)["v0"].to_pylist() == texts
