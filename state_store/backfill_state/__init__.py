"""Where a stream stands, kept outside of the engine's checkpoint for people and for the next run.

A stream reads a table slice by slice (*vnodes*) while changes flow by. At every *barrier* (the end of a micro-batch
that the engine has committed) a `ProgressStore` is told the epoch reached, the stream's offset, and the vnodes that
moved. It is never ahead of the checkpoint, and never needed to go on: the checkpoint alone suffices. What it adds is
the stream's identity, which tells two streams apart, and a table that anybody can query.

`DuckDBProgressStore` keeps one stream in one file; `InMemoryProgressStore` says what that should do. With a key
`(region VARCHAR, id BIGINT)`, format version 1 is

    backfill_progress
    | vnode | region | id   | backfill_finished | row_count |
    |-------|--------|------|-------------------|-----------|
    |     0 | NULL   | NULL | true              |      4200 |   all rows emitted
    |     1 | eu     |  730 | false             |       512 |   rows up to ('eu', 730) emitted
                                                                vnode 2 has not been named yet: not started
    vnode_bounds
    | vnode | region | id   |   where a vnode ends; opaque to the store
    |-------|--------|------|
    |     0 | eu     |  100 |
    |     1 | us     |   40 |

    stream   one row, or none before a stream begins
    | stream_id | upstream | system | table_name | table_id | properties      which stream
    | key_names | key_columns | key_types                                     its key: user's names, stored names, types
    | epoch | checkpoint_offset                                               the barrier; NULL before the first

    format
    | version |

A position is the key of the last row emitted, or NULL; that a vnode is finished is a fact of its own. A key column is
stored under its own name unless it clashes with another column: `layout` has the rule.

The laws (in full at `ProgressStore`; `tests/state_store` holds every store to them):

- a call's effect is durable when it returns, and is there wholly or not at all after a crash;
- progress is the last row that a barrier gave each vnode; epoch, offset and progress are of the same barrier;
- a barrier never moves backwards, and the same barrier again changes nothing;
- what comes back has the names, the types and the values that went in.

To recover:

| found                                      | do                                                                   |
|--------------------------------------------|----------------------------------------------------------------------|
| no file, or `identity()` is None           | `begin`, or `rebuild` when a checkpoint goes on                      |
| `epoch()` is None                          | `begin` again, the bounds again: both are idempotent until a barrier |
| `epoch()` is behind the checkpoint         | `commit` with all vnodes that differ, or `rebuild`                   |
| `epoch()` is ahead of the checkpoint       | an old checkpoint is back: ask a person, then `rebuild` or `reset`   |
| `StateDamagedError`                        | delete the file and its `.wal`; then as for no file                  |
| `StateBusyError`                           | try again; another process has the file                              |
| any other error while storing              | what was stored is intact; the call may be made again                |

Nothing here knows the engine or an upstream. Not thread-safe: a store has one user at a time.

store             the protocol, and its laws
memory            the reference: a few dictionaries
duckdb_store      one DuckDB file
duckdb_rows       the SQL of its tables
duckdb_copy       looking into that file while a stream writes
duckdb_file       opening the file, and making it
duckdb_instance   what connects to the file
given             rows that a statement reads
duckdb_errors     what DuckDB's errors mean
migrations        format versions
admission         which calls fit what is stored
layout            the columns of what is stored
keytypes          the types that a key may have
upsert            the last row of every key, in a file of its own
closing           what a `with` block closes
errors
"""

from __future__ import annotations

from backfill_state.duckdb_copy import looked_at
from backfill_state.duckdb_store import DuckDBProgressStore
from backfill_state.errors import (
    AnotherLayoutError,
    BarrierBackwardsError,
    ConsolidationError,
    DefiniteStateError,
    StateBusyError,
    StateConflictError,
    StateDamagedError,
    StateFileError,
    StateLayoutError,
    StateMemoryError,
    StateNoMemoryLeftError,
    StateStoreError,
    StateUnwritableError,
    StateVersionError,
    TransientStateError,
    UpsertStateDamagedError,
    UpsertStateMemoryError,
)
from backfill_state.layout import stored_names
from backfill_state.memory import InMemoryProgressStore
from backfill_state.migrations import FORMAT_VERSION
from backfill_state.store import Barrier, ProgressStore, StreamIdentity

__all__ = [
    "FORMAT_VERSION",
    "AnotherLayoutError",
    "Barrier",
    "BarrierBackwardsError",
    "ConsolidationError",
    "DefiniteStateError",
    "DuckDBProgressStore",
    "InMemoryProgressStore",
    "ProgressStore",
    "StateBusyError",
    "StateConflictError",
    "StateDamagedError",
    "StateFileError",
    "StateLayoutError",
    "StateMemoryError",
    "StateNoMemoryLeftError",
    "StateStoreError",
    "StateUnwritableError",
    "StateVersionError",
    "StreamIdentity",
    "TransientStateError",
    "UpsertStateDamagedError",
    "UpsertStateMemoryError",
    "looked_at",
    "stored_names",
]
