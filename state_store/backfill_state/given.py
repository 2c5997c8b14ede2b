"""Rows of Arrow that a statement reads by the name `given`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa


class _Given:
    """Rows that can be let go of: DuckDB keeps what was registered in a transaction until that ends."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows: Any = rows  # Arrow's stubs do not type its method.

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._rows.__arrow_c_stream__(requested_schema)

    def let_go(self) -> None:
        self._rows = self._rows.schema.empty_table()


@contextmanager
def given_to(connection: duckdb.DuckDBPyConnection, rows: pa.Table) -> Iterator[None]:
    """The rows as a view `given` while the block runs; after an error the connection is not used again."""
    held = _Given(rows)
    try:
        connection.register("given", held)
        yield
        connection.unregister("given")
    finally:
        held.let_go()


def run(connection: duckdb.DuckDBPyConnection, rows: pa.Table, sql: str) -> None:
    """Runs a statement that reads the rows as `given`; after an error the connection is not used again."""
    with given_to(connection, rows):
        # Not `sql`: that asks once more for what a statement has given, even if that is only a count.
        connection.execute(sql)


def found_with(connection: duckdb.DuckDBPyConnection, rows: pa.Table, sql: str) -> pa.Table:
    """The result of a query that reads the rows as `given`; after an error the connection is not used again."""
    with given_to(connection, rows):
        found: pa.Table = connection.sql(sql).to_arrow_table()
    return found
