"""Rows of one version of a table, as `deltalake` reads them with the help of the files' statistics.

It leaves out files by these, and knows deletion vectors, partitions, renamed and added columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder
from deltalake.schema import PrimitiveType

from backfill.upstream.delta.keys.columns import quoted
from backfill.upstream.delta.tables.types import misread

_SESSION: Final = {"datafusion.execution.parquet.coerce_int96": "us"}
"""Spark writes times as INT96, unless told otherwise. `deltalake` reads those before 1677 and after 2262 as other ones,
because it counts them in nanoseconds, unless a query says otherwise."""

BATCH_ROWS: Final = 8192
"""The most rows that are read at a time, which is DataFusion's own: several such batches are in memory at once."""


def readable(table: DeltaTable) -> pa.Schema:
    """The columns that a condition may name."""
    found: Any = table.schema().to_arrow()
    columns = pa.schema(found)
    left_out = misread(columns, table.metadata().partition_columns)
    return pa.schema([field for field in columns if field.name not in left_out])


def scanned(
    table: DeltaTable,
    names: Sequence[str],
    predicate: str | None,
    *,
    batch_rows: int = BATCH_ROWS,
    most: int | None = None,
) -> pa.RecordBatchReader:
    """The rows for which the predicate holds, and maybe others, in no order.

    They come `batch_rows` at a time, and no more than `most` in all, if that is given.
    """
    selected = ", ".join(map(quoted, names))
    query = f"SELECT {selected} FROM feed" + ("" if predicate is None else f" WHERE {predicate}")
    query += "" if most is None else f" LIMIT {most}"
    session = {**_SESSION, "datafusion.execution.batch_size": str(batch_rows)}
    found = pa.RecordBatchReader.from_stream(QueryBuilder(session).register("feed", table).execute(query))
    written = {field.name for field in table.schema().fields if field.type == PrimitiveType("string")}
    texts = written.intersection(found.schema.names, table.metadata().partition_columns)
    return _with_nulls(found, texts) if texts else found


def _with_nulls(found: pa.RecordBatchReader, texts: Collection[str]) -> pa.RecordBatchReader:
    """The rows with null for a partition's empty text, which is how Delta's log writes it (protocol, Partition Value
    Serialization).
    """
    fields = [pa.field(field.name, pa.string()) if field.name in texts else field for field in found.schema]
    schema = pa.schema(fields)

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in found:
            arrays: list[pa.Array[Any]] = list(batch.columns)
            for at, name in enumerate(batch.schema.names):
                if name in texts:
                    values = arrays[at].cast(pa.string())
                    arrays[at] = pc.if_else(pc.equal(values, pa.scalar("")), pa.scalar(None, pa.string()), values)
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())
