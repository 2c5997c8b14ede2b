"""The output that a state is consolidated from: lines that are added up to entries once they are complete."""

from __future__ import annotations

from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from backfill_state.given import found_with, run
from backfill_state.upsert.columns import Field, Numbers
from backfill_state.upsert.duckdb_tables import LONG_CELLS, column_of
from backfill_state.upsert.long_cells import LONG, cut, may_be_long
from backfill_state.upsert.segments import Segments, extend, number
from backfill_state.upsert.state import UpsertLayout
from backfill_state.upsert.stored import KEY, ROW, StoredOutput, stored_schema


class PendingLines:
    """The SQL of the lines, for one layout. Nothing here commits."""

    def __init__(self, layout: UpsertLayout) -> None:
        key, row = stored_schema(layout.key, KEY), stored_schema(layout.row, ROW)
        self._key, self._row, self._cells = ", ".join(key.names), ", ".join(row.names), row.names
        self._cell_columns = [column_of(field) for field in row]
        columns = [f"{column_of(field)} NOT NULL" for field in key] + self._cell_columns
        self._columns = ", ".join(
            [*columns, "diff BIGINT NOT NULL", "size BIGINT NOT NULL", "line BIGINT", "digest VARCHAR"]
        )
        self._digest = f"concat_ws(' ', {', '.join(['NULL', *filter(None, map(_digest, row))])})"

    def create(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Makes the tables, empty, in place of whatever there is."""
        connection.execute(f"CREATE OR REPLACE TABLE pending ({self._columns})")
        connection.execute(f"CREATE OR REPLACE TABLE long_pending ({LONG_CELLS})")

    def extend(self, connection: duckdb.DuckDBPyConnection, count: int) -> None:
        """Adds the row's columns after the first `count`, null in the lines there are."""
        extend(connection, "pending", self._cell_columns[count:])

    def add(self, connection: duckdb.DuckDBPyConnection, output: StoredOutput) -> None:
        """Adds lines of output."""
        if output.keys.num_rows:
            first = number(connection, "SELECT count(*) FROM pending")
            line = np.arange(first, first + output.keys.num_rows)
            given = _given(output, line)
            # Long cells are compared by a digest: DuckDB can group by what is not long. Lists stay and are compared
            # themselves, as in files that an earlier release has left half-way.
            digests = found_with(connection, given, f"SELECT line, {self._digest} AS digest FROM given").sort_by("line")
            rows, pieces = cut(given.append_column("digest", digests["digest"]), self._cells, line, lists=False)
            run(connection, rows, "INSERT INTO pending BY NAME SELECT * FROM given")
            run(connection, pieces, "INSERT INTO long_pending SELECT * FROM given")

    def complete(self, connection: duckdb.DuckDBPyConnection, segments: Segments, seq: int) -> Completed:
        """Makes entries, numbered from `seq` on, from what is pending.

        DuckDB adds up on disk what does not fit into memory. If a key does not add up, nothing is made.
        """
        lines = number(connection, "SELECT count(*) FROM pending")
        connection.execute(f"""
            CREATE OR REPLACE TEMP TABLE sums AS
            SELECT *, row_number() OVER () - 1 AS nth FROM (
                SELECT {self._key}, {self._row}, size, digest, sum(diff)::BIGINT AS copies, min(line) AS line
                FROM pending GROUP BY ALL HAVING sum(diff) <> 0
            )
        """)
        keys = f"SELECT 1 FROM sums GROUP BY {self._key} HAVING count(*) > 1 OR max(copies) <> 1"
        wrong = number(connection, f"SELECT count(*) FROM ({keys})")
        [(count, size)] = connection.execute("SELECT count(*), coalesce(sum(size), 0)::BIGINT FROM sums").fetchall()
        if not wrong:
            heads = f"nth + {seq} AS seq, NULL AS order_key, NULL AS order_tie, true AS present"
            for begin, end in segments.shares(connection, count, size):
                part = f"(SELECT *, {heads} FROM sums WHERE nth >= {begin} AND nth < {end})"
                pieces = (
                    "SELECT part.seq, cell, piece, data "
                    f"FROM {part} AS part JOIN long_pending AS long ON long.seq = part.line"
                )
                segments.take_in(connection, part, end - begin, pieces)
            self.create(connection)
        connection.execute("DROP TABLE sums")
        return Completed(lines, wrong, count, size)


@dataclass(frozen=True)
class Completed:
    """What completing found: how many lines of output, and how many keys that do not add up. The others add up to
    `count` entries of `size` bytes.
    """

    lines: int
    wrong: int
    count: int
    size: int


def _given(output: StoredOutput, line: Numbers) -> pa.Table:
    names = [*output.keys.schema.names, *output.rows.schema.names, "diff", "size", "line"]
    numbers = [output.diffs, pa.array(output.sizes), pa.array(line)]
    return pa.table([*output.keys.columns, *output.rows.columns, *numbers], names=names)


def _digest(field: Field) -> str | None:
    """SQL that tells the long cells of a column apart, null for a cell that is not long; None for other columns."""
    if not may_be_long(field.type):
        return None
    length = "strlen" if pt.is_string(field.type) else "octet_length"
    return f"CASE WHEN {length}({field.name}) > {LONG} THEN '{field.name} ' || sha256({field.name}) END"
