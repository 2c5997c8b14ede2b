"""Rows in the order of some of their columns: few of them by Arrow, many by DuckDB, which sorts on disk as well.

Both compare text and bytes by their bytes, and everything else that a key may be made of by value.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, TypeAlias

import duckdb
import pyarrow as pa

from backfill.order import sorting_by

FEW_BYTES: Final = 32 << 20
"""Up to so many bytes Arrow sorts: that is faster than to start DuckDB."""

MEMORY: Final = "256MB"
"""What one sort by DuckDB may take before it uses the disk."""

BATCH_ROWS: Final = 32_768

Tables: TypeAlias = Mapping[str, pa.RecordBatchReader | pa.Table]


def in_order(rows: Iterable[pa.RecordBatch], schema: pa.Schema, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows, which have this schema, by these columns."""
    source = iter(rows)
    few: list[pa.RecordBatch] = []
    size = 0
    for batch in source:
        few.append(batch)
        size += batch.nbytes
        if size > FEW_BYTES:
            yield from _in_order_of_many(chain(few, source), schema, columns)
            return
    table = pa.Table.from_batches(few, schema).sort_by(sorting_by(columns))
    yield from table.combine_chunks().to_batches(BATCH_ROWS)


def _in_order_of_many(
    rows: Iterator[pa.RecordBatch], schema: pa.Schema, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    order = ", ".join(map(quoted, columns))
    for batch in queried_over(schema, rows, f"SELECT * FROM feed ORDER BY {order}"):
        yield batch.cast(schema)


class _Watched:
    """An iterator that keeps the error it ended with: DuckDB hands on no more than its text."""

    def __init__(self, rows: Iterator[pa.RecordBatch]) -> None:
        self._rows = rows
        self.error: Exception | None = None

    def __iter__(self) -> _Watched:
        return self

    def __next__(self) -> pa.RecordBatch:
        try:
            return next(self._rows)
        except StopIteration:
            raise
        except Exception as error:
            self.error = error
            raise


def queried_over(schema: pa.Schema, rows: Iterable[pa.RecordBatch], query: str) -> Iterator[pa.RecordBatch]:
    """What DuckDB's SQL gives over the rows, which it knows as `feed`; an error of theirs is raised as it was.

    One of DuckDB's own is a `duckdb.Error` before the first batch, and later an OSError with the same text.
    """
    watched = _Watched(iter(rows))
    try:
        yield from queried(query, {"feed": pa.RecordBatchReader.from_batches(schema, watched)})
    except (duckdb.Error, OSError, pa.ArrowException):
        error, watched.error = watched.error, None
        if error is None:
            raise
        raise error.with_traceback(None) from None


def queried(query: str, tables: Tables) -> Iterator[pa.RecordBatch]:
    """What DuckDB's SQL gives over these tables and streams."""
    with tempfile.TemporaryDirectory(prefix="backfill-sort-") as folder:
        # One thread: Spark has as many readers at work as there are cores.
        settings: dict[str, str | bool | int | float | list[str]] = {
            "temp_directory": folder,
            "memory_limit": MEMORY,
            "threads": "1",
        }
        with duckdb.connect(config=settings) as session:
            session.execute("SET enable_external_access = false")
            session.execute("SET TimeZone = 'UTC'")  # Else a condition on a time is judged in this machine's.
            for name, table in tables.items():
                session.register(name, table)
            yield from session.sql(query).to_arrow_reader(BATCH_ROWS)


def quoted(name: str) -> str:
    """The name as an identifier, in DuckDB's SQL and in DataFusion's."""
    return '"' + name.replace('"', '""') + '"'
