"""The last row of every key, so that what a log leaves out can be filled in.

An upsert state maps a key to its last row, or to the tombstone of one that was deleted, together with the order of
the update that brought it. A stream asks it for what a change is about to replace (`multi_get`), and then tells it of
the change (`multi_put`); both in one `batch`, whose token makes a replay harmless. A state that was lost may be made
anew (`consolidate_chunk`) by whoever has kept all of the stream's output; the connector does not: it starts over.

For example, with a key `id` and a row `name`, and nothing stored:

    multi_put  id 7, order (10, 0), 'a'      inserts=1
    multi_put  id 7, order (12, 1), 'b'      updates=1
    multi_put  id 7, order (12, 0), 'c'      stale=1: the entry is of a later order
    multi_put  id 7, order (15, 0), deleted  deletes=1
    multi_put  id 7, order (14, 0), 'd'      stale=1: the tombstone keeps its order
    multi_get  id 7, 8                       a tombstone of order (15, 0), and nothing

state            the protocol, and its laws
memory           the reference: a dictionary
duckdb_state     one DuckDB file
duckdb_tables    its tables
segments         its entries, and why they are kept so
pending          the output that it is consolidated from
long_cells       its long texts, blobs and lists, in pieces
chunks           looking up and writing many keys, chunk by chunk
refusals         calls that do not fit how a state stands
stored           the columns of a call as they are stored
codec            how a column of any type is stored, bit by bit
sizes            how many bytes a row takes
columns          what columns are called in annotations

What is in the file follows from the stream's output, and not from its checkpoint.
"""

from __future__ import annotations

from backfill_state.upsert.duckdb_state import CHUNK_ROWS, DuckDBUpsertState
from backfill_state.upsert.memory import InMemoryUpsertState
from backfill_state.upsert.state import (
    ConsolidateStats,
    Found,
    GetStats,
    MergeStats,
    PutStats,
    Totals,
    Updates,
    UpsertLayout,
    UpsertState,
)

__all__ = [
    "CHUNK_ROWS",
    "ConsolidateStats",
    "DuckDBUpsertState",
    "Found",
    "GetStats",
    "InMemoryUpsertState",
    "MergeStats",
    "PutStats",
    "Totals",
    "Updates",
    "UpsertLayout",
    "UpsertState",
]
