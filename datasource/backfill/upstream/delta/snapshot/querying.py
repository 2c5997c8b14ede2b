"""DuckDB's SQL over rows that come from elsewhere, for conditions that a person wrote and for joins."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, TypeAlias

import duckdb
import pyarrow as pa

from backfill.upstream.temporary import explaining_temporary_folder

MEMORY: Final = "256MB"
"""What one query may take before it uses the disk."""

BATCH_ROWS: Final = 32_768

Tables: TypeAlias = Mapping[str, pa.RecordBatchReader | pa.Table]


@contextmanager
def searching() -> Iterator[duckdb.DuckDBPyConnection]:
    """A session that reads what is registered with it, and no file."""
    with explaining_temporary_folder("rows cannot be stored while they are searched"):
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
            session.execute("SET TimeZone = 'UTC'")  # Else a condition on a time is judged in this machine's zone.
            yield session


def queried(query: str, tables: Tables) -> Iterator[pa.RecordBatch]:
    """What DuckDB's SQL gives over these tables and streams."""
    with searching() as session:
        for name, table in tables.items():
            session.register(name, table)
        yield from session.sql(query).to_arrow_reader(BATCH_ROWS)
