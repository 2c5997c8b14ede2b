"""How large a table's rows are, and so how many of them are read at a time."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from backfill.upstream import TableSize
from backfill.upstream.delta.files.footers import largest_rows
from backfill.upstream.delta.snapshot.pieces import BATCH_BYTES
from backfill.upstream.delta.snapshot.scan import BATCH_ROWS, scanned

_LOOKED_AT: Final = (16, 1000)
_LOOKED_AT_BYTES: Final = 8 << 20
"""How many rows tell how large a row is: a few, and more if those take no more than about so many bytes."""


def batch_rows(table: DeltaTable, columns: pa.Schema) -> int:
    """How many rows of these columns are read at a time: the first rows found and the file with the largest ones tell.
    No file is looked at where the columns' types tell.
    """
    if all(pa.types.is_primitive(kind) or pa.types.is_decimal(kind) for kind in columns.types):
        size = sum(kind.bit_width for kind in columns.types) // 8
    else:
        try:
            size = max(row_bytes(table, columns) or 1, largest_rows(table, columns.names))
        except Exception:  # noqa: BLE001 - deltalake raises Exception itself. If it matters, reading rows meets it too.
            size = in_files(table).row_bytes
    return max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, size)))


def row_bytes(table: DeltaTable, columns: pa.Schema) -> int | None:
    """About how many bytes these columns of a row take in memory, by the first rows found; None without any."""
    size = rows = 0
    for most in _LOOKED_AT:
        if rows and size * most > rows * _LOOKED_AT_BYTES:
            break
        # `deltalake` has a text that occurs many times only once, a column of its type has it many times.
        found = [batch.cast(columns) for batch in scanned(table, columns.names, None, batch_rows=most, most=most)]
        rows, size = sum(batch.num_rows for batch in found), sum(batch.nbytes for batch in found)
    return max(1, size // rows) if rows else None


def in_files(table: DeltaTable) -> TableSize:
    """The size by the files' statistics, which count no rows that a deletion vector deletes; in compressed bytes."""
    actions = pa.table(table.get_add_actions())
    size = int(pc.sum(actions["size_bytes"]).as_py() or 0)
    rows = int(pc.sum(actions["num_records"]).as_py() or 0)
    rows = max(1, rows or size // 100)
    return TableSize(rows, max(1, size // rows))
