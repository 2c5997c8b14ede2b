"""Rows of one version of a table by key range, in key order; files without such rows are left out.

`deltalake` leaves out files by their statistics, and knows deletion vectors, partitions, renamed and added columns.
Its statistics are only trusted to leave out files: which rows lie in a range is decided over the rows themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

from backfill.errors import OptionsError
from backfill.upstream.delta.keys import KeyColumns
from backfill.upstream.delta.sorting import in_order, queried, quoted
from backfill.vnode import KeyRange


def rows_within(
    table: DeltaTable, columns: pa.Schema, key: KeyColumns, item: KeyRange, condition: str = ""
) -> Iterator[pa.RecordBatch]:
    """The rows of the range in key order, with these columns; only those for which the condition holds, if any."""
    predicate = key.predicate((item,))
    found = rows_where(table, columns.names, predicate, condition)

    def inside() -> Iterator[pa.RecordBatch]:
        for batch in found:
            rows = batch.cast(columns)
            yield rows.filter(key.covered(rows.select(key.names), (item,)))

    return in_order(inside(), columns, key.names)


def rows_where(
    table: DeltaTable, names: Sequence[str], predicate: str | None, condition: str
) -> Iterator[pa.RecordBatch]:
    """These columns of the rows for which both hold, and maybe of others for which the predicate does not."""
    if not condition:
        return iter(scanned(table, names, predicate))
    # The condition may name columns that are not carried.
    selected = ", ".join(map(quoted, names))
    return queried(f"SELECT {selected} FROM feed WHERE ({condition}\n)", {"feed": scanned(table, None, predicate)})


def require_condition(table: DeltaTable, option: str, condition: str) -> None:
    """Refuses what is no condition over the table's columns; none at all is one."""
    if not condition:
        return
    try:
        for _ in queried(f"SELECT 1 FROM feed WHERE ({condition}\n) LIMIT 0", {"feed": scanned(table, None, None)}):
            pass
    except duckdb.Error as error:
        raise OptionsError(
            f"the option {option} is no condition over the columns of the table, in the SQL of DuckDB: {error}"
        ) from None


def rows_of(table: DeltaTable, columns: pa.Schema, key: KeyColumns, keys: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows with these keys, in no order."""
    found = scanned(table, columns.names, key.predicate((key.around(keys),)))
    selected, names = (", ".join(map(quoted, each)) for each in (columns.names, key.names))
    query = f"SELECT {selected} FROM feed SEMI JOIN keys USING ({names})"
    for batch in queried(query, {"feed": found, "keys": pa.Table.from_batches([keys])}):
        yield batch.cast(columns)


def scanned(table: DeltaTable, names: Sequence[str] | None, predicate: str | None) -> pa.RecordBatchReader:
    """The rows for which the predicate holds, and maybe others, in no order; all columns where none is named."""
    found = table.scan(columns=None if names is None else list(names), predicate=predicate)
    return pa.RecordBatchReader.from_stream(found)
