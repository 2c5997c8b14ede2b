"""DuckDB's SQL over rows that come from elsewhere, for conditions that a person wrote and for joins."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

import duckdb
import pyarrow as pa

from backfill.temporary import in_temporary_folder

MEMORY: Final = "256MB"
"""What one query may take before it uses the disk."""

BATCH_ROWS: Final = 32_768

Tables: TypeAlias = Mapping[str, pa.RecordBatchReader | pa.Table]


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


def queried_over(
    schema: pa.Schema, rows: Iterable[pa.RecordBatch], query: str, batch_rows: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """What DuckDB's SQL gives over the rows, which it knows as `feed`; an error of theirs is raised as it was.

    One of DuckDB's own is a `duckdb.Error` before the first batch, and later an OSError with the same text.
    """
    watched = _Watched(iter(rows))
    try:
        yield from queried(query, {"feed": pa.RecordBatchReader.from_batches(schema, watched)}, batch_rows)
    except (duckdb.Error, OSError, pa.ArrowException):
        error, watched.error = watched.error, None
        if error is None:
            raise
        raise error.with_traceback(None) from None


def queried(query: str, tables: Tables, batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
    """What DuckDB's SQL gives over these tables and streams, so many rows at a time, or up to 2047 more."""
    with in_temporary_folder("rows cannot be kept while they are searched"):
        temporary = tempfile.TemporaryDirectory(prefix="backfill-query-")
    with temporary as folder:
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
            yield from session.sql(query).to_arrow_reader(batch_rows)


def quoted(name: str) -> str:
    """The name as an identifier, in DuckDB's SQL and in DataFusion's."""
    return '"' + name.replace('"', '""') + '"'
