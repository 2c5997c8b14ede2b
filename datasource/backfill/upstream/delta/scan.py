"""Rows of one version of a table by key range, in key order; files without such rows are left out.

`deltalake` leaves out files by their statistics, and knows deletion vectors, partitions, renamed and added columns.
Its statistics are only trusted to leave out files: which rows lie in a range is decided over the rows themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Field

from backfill.errors import OptionsError
from backfill.upstream.delta.keys import KeyColumns
from backfill.upstream.delta.sorting import in_order, queried, quoted
from backfill.upstream.delta.types import arrow_type
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
    scan = table.scan(columns=None if names is None else list(names), predicate=predicate)
    found = pa.RecordBatchReader.from_stream(scan)
    columns = {field.name: arrow_type(field.name, field.type) for field in _partitioning(table)}
    texts = [name for name in found.schema.names if columns.get(name) == pa.string()]
    return _with_nulls(found, texts) if texts else found


def _partitioning(table: DeltaTable) -> list[Field]:
    names = table.metadata().partition_columns
    return [field for field in table.schema().fields if field.name in names]


def _with_nulls(found: pa.RecordBatchReader, texts: Sequence[str]) -> pa.RecordBatchReader:
    """A partition's empty text as what it is in Delta's log (protocol, Partition Value Serialization): null."""
    fields = [pa.field(field.name, pa.string()) if field.name in texts else field for field in found.schema]

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in found:
            arrays: list[pa.Array[Any]] = list(batch.columns)
            for at, name in enumerate(batch.schema.names):
                if name in texts:
                    values = arrays[at].cast(pa.string())
                    arrays[at] = pc.if_else(pc.equal(values, pa.scalar("")), pa.scalar(None, pa.string()), values)
            yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    return pa.RecordBatchReader.from_batches(pa.schema(fields), batches())
