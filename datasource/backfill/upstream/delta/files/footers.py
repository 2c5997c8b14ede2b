"""How large rows are in files, by what these say themselves."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from backfill.upstream.delta.files.column_names import stored_names
from backfill.upstream.delta.files.location import FileLocation, Files

_FEW: Final = 100
"""Files of fewer rows count as if they had so many: what each column takes, whatever its rows, is not due to a row."""


def column_bytes(group: pq.RowGroupMetaData, names: Collection[str]) -> int:
    """How many bytes these columns take in the row group, not compressed; of equal values there may be only one."""
    columns = map(group.column, range(group.num_columns))
    return sum(column.total_uncompressed_size for column in columns if column.path_in_schema.split(".")[0] in names)


def largest_rows(table: DeltaTable, names: Collection[str]) -> int:
    """About how many bytes these columns take in a row of the file with the largest; 0 where no file tells its rows."""
    actions = pa.table(table.get_add_actions())
    counted: Any = actions["num_records"]
    rows = counted.fill_null(0).to_numpy()
    if not rows.any():
        return 0
    each = np.where(rows > 0, actions["size_bytes"].to_numpy() / np.maximum(rows, _FEW), 0)
    largest = actions["path"][int(each.argmax())].as_py()
    with Files(table.table_uri).open(FileLocation.of(largest)) as opened:
        footer = pq.ParquetFile(opened).metadata
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        stored = set(stored_names(table, names))
        return max(column_bytes(group, stored) // max(group.num_rows, _FEW) for group in groups)
