"""How large a table is taken for."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from backfill.adapters import open_upstream
from backfill.options import parse


def test_rows_are_as_large_as_they_are_in_memory_whatever_their_files_take(tmp_path: Path) -> None:
    """`maxBytesPerTrigger` bounds what a batch takes; compressed files are a fraction of that."""
    rows = {"id": range(2000), "doc": ["a text of which there are many, " * 100] * 2000}
    write_deltalake(tmp_path / "table", pa.table(rows))
    with closing(open_upstream(parse({"path": str(tmp_path / "table"), "keyColumns": "id"}))) as upstream:
        size = upstream.size()
        assert size.row_count == 2000
        assert 3200 < size.row_bytes < 4000
    with closing(
        open_upstream(parse({"path": str(tmp_path / "table"), "keyColumns": "id", "columns": "id"}))
    ) as narrow:
        assert narrow.size().row_bytes < 100
