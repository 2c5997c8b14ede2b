"""The file of a `DuckDBUpsertState`: its tables, and how it is made and brought forward.

Format version 4, for a key of two columns and a row of three:

    entries_1 ... | probe | k0 | k1 | seq | order_key | order_tie | present | size | v0 | v1 | v2 |
    long_1 ...    | seq | cell | piece | data |           long values of `v0` (cell 0) and so on; see `long_cells`
    segments      | segment | entries | dead | size | dead_size |   how many each `entries_N` has, and how many of them
                                                          are replaced; the bytes of all, and of those
    dead_1 ...    | seq |                                 which ones are replaced
    pending       | k0 | k1 | v0 | v1 | v2 | diff | size | line | digest |   output that waits for the rest of it
    long_pending  | seq | cell | piece | data |           the long values of its lines, and `digest` is of these
    upsert_state  | stream_id | key_schema | row_schema | token | consolidating | values | tombstones | size | seq |
    upsert_format | version |

Columns are stored as `codec` says; the schemas are Arrow's own serialization of the user's. `segments` tells what the
entries are for. Columns that were added to a layout stand last. Version 1 had no `long_…`, `size`, `line` and `digest`;
what it has written stays in its rows. Version 2 had no `dead_size`. Version 3 kept lists in their rows, and a release
that wrote it would take a list that is not in its row for null.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import duckdb
import pyarrow as pa
import pyarrow.types as pt

from backfill_state.duckdb_errors import UnreadableError
from backfill_state.duckdb_file import FileForm
from backfill_state.duckdb_instance import OwnInstances, Setting
from backfill_state.keytypes import to_duckdb
from backfill_state.migrations import Step
from backfill_state.upsert.columns import Field, Type
from backfill_state.upsert.state import Totals, UpsertLayout


def _keep_long_cells_apart(connection: duckdb.DuckDBPyConnection) -> None:
    pieces = "(seq BIGINT NOT NULL, cell INTEGER NOT NULL, piece INTEGER NOT NULL, data BLOB NOT NULL)"
    connection.execute("ALTER TABLE segments ADD COLUMN size BIGINT")
    if connection.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = 'pending'").fetchone():
        connection.execute("ALTER TABLE pending ADD COLUMN line BIGINT")
        connection.execute("ALTER TABLE pending ADD COLUMN digest VARCHAR")
        connection.execute("UPDATE pending SET line = rowid, digest = ''")
        connection.execute(f"CREATE TABLE long_pending {pieces}")
    for (segment,) in connection.execute("SELECT segment FROM segments").fetchall():
        connection.execute(f"CREATE TABLE long_{segment} {pieces}")
        size = f"(SELECT coalesce(sum(size), 0)::BIGINT FROM entries_{segment})"
        connection.execute(f"UPDATE segments SET size = {size} WHERE segment = {segment}")


def _count_dead_bytes(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("ALTER TABLE segments ADD COLUMN dead_size BIGINT")
    for (segment,) in connection.execute("SELECT segment FROM segments").fetchall():
        dead = f"SELECT coalesce(sum(size), 0)::BIGINT FROM entries_{segment} SEMI JOIN dead_{segment} USING (seq)"
        connection.execute(f"UPDATE segments SET dead_size = ({dead}) WHERE segment = {segment}")


def _cut_lists(_: duckdb.DuckDBPyConnection) -> None:
    """Changes nothing: lists that were written before stay in their rows."""


STEPS: Final[tuple[Step, ...]] = (_keep_long_cells_apart, _count_dead_bytes, _cut_lists)
"""As in `migrations`: `STEPS[n - 1]` turns a file of version `n` into one of version `n + 1`."""

UPSERT_FORMAT_VERSION: Final = 1 + len(STEPS)

_CREATE_STATE: Final = """
CREATE TABLE upsert_state (
    stream_id VARCHAR NOT NULL,
    key_schema BLOB NOT NULL,
    row_schema BLOB NOT NULL,
    token VARCHAR,
    consolidating BOOLEAN NOT NULL,
    "values" BIGINT NOT NULL,
    tombstones BIGINT NOT NULL,
    size BIGINT NOT NULL,
    seq BIGINT NOT NULL
)
"""
_CREATE_SEGMENTS: Final = """
CREATE TABLE segments (
    segment BIGINT NOT NULL, entries BIGINT NOT NULL, dead BIGINT NOT NULL, size BIGINT, dead_size BIGINT
)
"""
LONG_CELLS: Final = "seq BIGINT NOT NULL, cell INTEGER NOT NULL, piece INTEGER NOT NULL, data BLOB NOT NULL"
"""The columns of a table for `long_cells.PIECES`."""


def upsert_file(memory_limit: str, begin: Callable[[duckdb.DuckDBPyConnection], object]) -> FileForm:
    """The form of a state file, for which DuckDB takes at most so much memory; `begin` writes what an empty one has."""
    settings: dict[str, Setting] = {
        "threads": 2,
        "memory_limit": memory_limit,
        # Nothing here is read in the order it was written, and keeping that order takes memory.
        "preserve_insertion_order": False,
        # A batch is some ten megabytes: not each of them has to be moved from the log into the file at once.
        "checkpoint_threshold": "128MB",
    }

    def create(connection: duckdb.DuckDBPyConnection) -> None:
        for statement in (_CREATE_STATE, _CREATE_SEGMENTS):
            connection.execute(statement)
        begin(connection)

    return FileForm(OwnInstances(settings), "upsert_format", STEPS, create)


@dataclass(frozen=True)
class StateHeader:
    """The one row of `upsert_state`."""

    layout: UpsertLayout
    token: str | None
    consolidating: bool
    totals: Totals
    seq: int
    """How many entries were ever written: the number of the next one."""


def read_header(connection: duckdb.DuckDBPyConnection) -> StateHeader:
    """Where the state stands."""
    rows = connection.execute(
        "SELECT stream_id, key_schema, row_schema, token, consolidating, s.values, tombstones, size, seq "
        "FROM upsert_state AS s"
    ).fetchall()
    if len(rows) != 1:
        raise UnreadableError(f"its table `upsert_state` has {len(rows)} rows")
    [(stream_id, key, row, token, consolidating, values, tombstones, size, seq)] = rows
    layout = UpsertLayout(stream_id, _schema(key), _schema(row))
    return StateHeader(layout, token, consolidating, Totals(values, tombstones, size), seq)


def write_header(connection: duckdb.DuckDBPyConnection, standing: StateHeader) -> None:
    """Replaces the one row of `upsert_state`."""
    layout, totals = standing.layout, standing.totals
    connection.execute("DELETE FROM upsert_state")
    connection.execute(
        "INSERT INTO upsert_state VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            layout.stream_id,
            layout.key.serialize().to_pybytes(),
            layout.row.serialize().to_pybytes(),
            standing.token,
            standing.consolidating,
            totals.values,
            totals.tombstones,
            totals.size,
            standing.seq,
        ],
    )


def _schema(serialized: bytes) -> pa.Schema:
    try:
        return pa.ipc.read_schema(pa.py_buffer(serialized))
    except (pa.ArrowException, OSError) as error:
        raise UnreadableError("a schema in its table `upsert_state` is none") from error


def column_of(field: Field) -> str:
    """A stored column in DuckDB's DDL."""
    return f"{field.name} {_duckdb_type(field)}"


def _duckdb_type(field: Field) -> str:
    stored: Type = field.type
    if pt.is_list(stored):
        return f"{_duckdb_type(stored.value_field)}[]"
    if pt.is_struct(stored):
        return f"STRUCT({', '.join(map(column_of, stored))})"
    return to_duckdb(field.name, stored)
