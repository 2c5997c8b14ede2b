"""A table as one record batch."""

from __future__ import annotations

import pyarrow as pa
import pytest

from backfill.arrow.batches import as_one_batch

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "v": ["a", None, "c"]})


@pytest.mark.parametrize(
    "table",
    [ROWS, pa.concat_tables([ROWS, ROWS]), ROWS.slice(0, 0), ROWS.schema.empty_table(), ROWS.select([])],
    ids=["one chunk", "two chunks", "an empty chunk", "no chunk", "no columns"],
)
def test_a_table_is_one_batch_whatever_its_chunks(table: pa.Table) -> None:
    batch = as_one_batch(table)
    assert batch.schema == table.schema
    assert batch.to_pydict() == table.to_pydict()
