"""The SQL of a `DuckDBProgressStore`: the form of its file, and reading and writing its tables. Nothing here commits.

Every statement is fixed text. Only the DDL of the two tables with key columns is composed, by `layout`; rows are
matched to columns by name, and names of key columns travel in the `stream` row.
"""

from __future__ import annotations

from typing import Final

import duckdb
import pyarrow as pa

from backfill_state.admission import Stream
from backfill_state.duckdb_errors import UnreadableError
from backfill_state.duckdb_file import FileForm
from backfill_state.duckdb_instance import SharedInstance
from backfill_state.given import given_to, run
from backfill_state.keytypes import to_arrow, to_duckdb
from backfill_state.layout import (
    CREATE_STREAM,
    bounds_schema,
    create_bounds,
    create_progress,
    progress_schema,
    stored_names,
)
from backfill_state.migrations import STEPS
from backfill_state.store import Barrier, StreamIdentity

PROGRESS_FILE: Final = FileForm(
    # A stream opens its file several times a batch.
    SharedInstance(
        {
            # The store runs beside the engine and holds a few hundred rows.
            "threads": 1,
            "memory_limit": "64MB",
            # Blocks of DuckDB's usual 256 kB would make the file of a few hundred rows a megabyte.
            "default_block_size": 16384,
        }
    ),
    "format",
    STEPS,
    lambda connection: connection.execute(CREATE_STREAM),
)

_READ_STREAM = """
SELECT stream_id, upstream, system, table_name, table_id, key_names, key_types,
       map_keys(properties), map_values(properties), epoch, checkpoint_offset
FROM stream
"""
_WRITE_STREAM = """
INSERT INTO stream (stream_id, upstream, system, table_name, table_id, key_names, key_columns, key_types, properties)
VALUES (?, ?, ?, ?, ?, ?::VARCHAR[], ?::VARCHAR[], ?::VARCHAR[], map(?::VARCHAR[], ?::VARCHAR[]))
"""


def read_stream(connection: duckdb.DuckDBPyConnection) -> Stream | None:
    """The stream that the file belongs to, or None."""
    rows = connection.execute(_READ_STREAM).fetchall()
    if not rows:
        return None
    if len(rows) > 1:
        raise UnreadableError(f"its table `stream` has {len(rows)} rows")
    [(stream_id, upstream, system, table, table_id, names, types, properties, values, epoch, offset)] = rows
    try:
        key = pa.schema([pa.field(name, to_arrow(item)) for name, item in zip(names, types, strict=True)])
    except (KeyError, ValueError) as error:
        raise UnreadableError(f"the key columns {names} have types {types} in its table `stream`") from error
    pairs = tuple(zip(properties, values, strict=True))
    return Stream(StreamIdentity(stream_id, upstream, system, table, table_id, key, pairs), epoch, offset)


def forget_stream(connection: duckdb.DuckDBPyConnection) -> None:
    """Empties the file."""
    connection.execute("DELETE FROM stream")
    connection.execute("DROP TABLE IF EXISTS backfill_progress")
    connection.execute("DROP TABLE IF EXISTS vnode_bounds")


def write_stream(connection: duckdb.DuckDBPyConnection, identity: StreamIdentity) -> None:
    """Begins a stream in an empty file: its identity, and empty tables for its key."""
    names = stored_names(identity.key.names)
    types = [to_duckdb(field.name, field.type) for field in identity.key]
    properties = dict(identity.properties)
    connection.execute(
        _WRITE_STREAM,
        [
            identity.stream_id,
            identity.upstream,
            identity.system,
            identity.table,
            identity.table_id,
            identity.key.names,
            list(names),
            types,
            list(properties),
            list(properties.values()),
        ],
    )
    columns = list(zip(names, types, strict=True))
    connection.execute(create_progress(columns))
    connection.execute(create_bounds(columns))


def write_bounds(connection: duckdb.DuckDBPyConnection, bounds: pa.Table) -> None:
    """Replaces all bounds."""
    connection.execute("DELETE FROM vnode_bounds")
    run(connection, _named(connection, bounds), "INSERT INTO vnode_bounds BY NAME SELECT * FROM given ORDER BY vnode")


def write_barrier(connection: duckdb.DuckDBPyConnection, barrier: Barrier) -> None:
    """Moves the stream to a barrier: the rows of the changed vnodes, the epoch and the offset."""
    connection.execute("UPDATE stream SET epoch = ?, checkpoint_offset = ?", [barrier.epoch, barrier.offset])
    if not barrier.changed.num_rows:
        return
    # No index and no upsert: a scan of a few hundred vnodes is quicker than keeping an index in the log.
    with given_to(connection, _named(connection, barrier.changed)):
        connection.execute("DELETE FROM backfill_progress WHERE vnode IN (SELECT vnode FROM given)")
        connection.execute("INSERT INTO backfill_progress BY NAME SELECT * FROM given ORDER BY vnode")


def read_progress(connection: duckdb.DuckDBPyConnection, stream: Stream | None) -> pa.Table:
    """All of `backfill_progress`, as the API gives it."""
    if stream is None:
        return progress_schema(pa.schema([])).empty_table()
    rows = connection.sql("SELECT * FROM backfill_progress ORDER BY vnode").to_arrow_table()
    names = ["vnode", *_key_columns(connection), "backfill_finished", "row_count"]
    return _as_given(rows, names, progress_schema(stream.identity.key))


def read_bounds(connection: duckdb.DuckDBPyConnection, stream: Stream | None) -> pa.Table:
    """All of `vnode_bounds`, as the API gives it."""
    if stream is None:
        return bounds_schema(pa.schema([])).empty_table()
    rows = connection.sql("SELECT * FROM vnode_bounds ORDER BY vnode").to_arrow_table()
    return _as_given(rows, ["vnode", *_key_columns(connection)], bounds_schema(stream.identity.key))


def _key_columns(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """The stored names of the key columns: those chosen when the stream began, not what the rule would give today."""
    [(names,)] = connection.execute("SELECT key_columns FROM stream").fetchall()
    return list(names)


def _named(connection: duckdb.DuckDBPyConnection, rows: pa.Table) -> pa.Table:
    """The rows with the stored names."""
    names, key_columns = list(rows.schema.names), _key_columns(connection)
    names[1 : 1 + len(key_columns)] = key_columns
    return rows.rename_columns(names)


def _as_given(rows: pa.Table, names: list[str], schema: pa.Schema) -> pa.Table:
    """The rows with the user's names and types: DuckDB shows instants in the session's time zone, for one."""
    try:
        columns = [rows[name].cast(field.type) for name, field in zip(names, schema, strict=True)]
    except (KeyError, ValueError) as error:
        raise UnreadableError(f"of the columns {names} it has {rows.column_names}") from error
    return pa.Table.from_arrays(columns, schema=schema)
