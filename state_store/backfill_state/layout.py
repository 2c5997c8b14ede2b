"""The columns of what is stored, as Arrow schemas and as DuckDB tables.

    backfill_progress | vnode | <pk columns, typed> | backfill_finished | row_count |
    vnode_bounds      | vnode | <pk columns, typed> |
    stream            | one row: the stream's identity, and the barrier it stands at |
    format            | version |

A key column keeps its name unless that is impossible: DuckDB does not tell `Id` from `ID`, and knows no column
without a name. A name that is empty, that is `vnode`, `backfill_finished` or `row_count`, or that an earlier key
column has, letter case aside, gets underscores appended until no other column has it. The table `stream` keeps both
names; the Arrow tables of the API always have the user's names, and may thus have two columns of one name, so that
code goes by position: the vnode first, then the key, then the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from backfill_state.errors import StateLayoutError
from backfill_state.keytypes import to_duckdb

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

VNODE: Final = pa.field("vnode", pa.int32())
BACKFILL_FINISHED: Final = pa.field("backfill_finished", pa.bool_())
ROW_COUNT: Final = pa.field("row_count", pa.int64())

_RESERVED: Final = (VNODE.name, BACKFILL_FINISHED.name, ROW_COUNT.name)

CREATE_STREAM: Final = """
CREATE TABLE stream (
    stream_id VARCHAR NOT NULL,
    upstream VARCHAR NOT NULL,
    system VARCHAR NOT NULL,
    table_name VARCHAR NOT NULL,
    table_id VARCHAR NOT NULL,
    key_names VARCHAR[] NOT NULL,
    key_columns VARCHAR[] NOT NULL,
    key_types VARCHAR[] NOT NULL,
    properties MAP(VARCHAR, VARCHAR) NOT NULL,
    epoch BIGINT,
    checkpoint_offset VARCHAR
)
"""


def progress_schema(key: pa.Schema) -> pa.Schema:
    """The columns of `backfill_progress` for a key, with the user's names."""
    return pa.schema([VNODE, *key, BACKFILL_FINISHED, ROW_COUNT])


def bounds_schema(key: pa.Schema) -> pa.Schema:
    """The columns of `vnode_bounds` for a key, with the user's names."""
    return pa.schema([VNODE, *key])


def stored_names(key_names: Sequence[str]) -> tuple[str, ...]:
    """The key columns' names in DuckDB, by the rule above."""
    # Case folding equates more names than DuckDB does, which is harmless; it must never equate fewer.
    taken = {"", *_RESERVED}
    clashing = []
    for name in key_names:
        clashing.append(name.casefold() in taken)
        taken.add(name.casefold())
    result = []
    for name, clashes in zip(key_names, clashing, strict=True):
        free = name
        while clashes and free.casefold() in taken:
            free += "_"
        taken.add(free.casefold())
        result.append(free)
    return tuple(result)


def quoted(name: str) -> str:
    """The name as an SQL identifier, whatever it contains."""
    return '"' + name.replace('"', '""') + '"'


def create_progress(columns: Iterable[tuple[str, str]]) -> str:
    """The DDL of `backfill_progress` for key columns of these stored names and DuckDB types."""
    rest = [("backfill_finished", "BOOLEAN NOT NULL"), ("row_count", "BIGINT")]
    return _create("backfill_progress", [("vnode", "INTEGER NOT NULL"), *columns, *rest])


def create_bounds(columns: Iterable[tuple[str, str]]) -> str:
    """The DDL of `vnode_bounds` for key columns of these stored names and DuckDB types."""
    return _create("vnode_bounds", [("vnode", "INTEGER NOT NULL"), *columns])


def _create(table: str, columns: Iterable[tuple[str, str]]) -> str:
    body = ", ".join(f"{quoted(name)} {duckdb_type}" for name, duckdb_type in columns)
    return f"CREATE OR REPLACE TABLE {quoted(table)} ({body})"


def require_key(key: pa.Schema) -> None:
    """Refuses a key that cannot be stored: none at all, a name twice, or a name or a type that DuckDB lacks."""
    if not key.names:
        raise StateLayoutError("a stream needs a key of at least one column")
    if len(set(key.names)) < len(key.names):
        raise StateLayoutError(f"a key names each column once, but this one is {key.names}")
    for field in key:
        if "\0" in field.name:
            raise StateLayoutError(f"key column {field.name!r} has a zero character in its name")
        to_duckdb(field.name, field.type)


def require_schema(table: pa.Table, expected: pa.Schema) -> None:
    """Refuses other names, types or order; nullability and metadata are nobody's business here."""
    found, wanted = described(table.schema), described(expected)
    if found != wanted:
        raise StateLayoutError(f"the rows have columns ({found}), and the stream's key asks for ({wanted})")


def require_vnodes(table: pa.Table, key_columns: int) -> None:
    """Refuses rows that name a vnode twice or not at all, or that have only a part of a key as a position."""
    vnodes = table.column(0)
    if vnodes.null_count or pc.count_distinct(vnodes).as_py() != table.num_rows:
        raise StateLayoutError("each row names a vnode of its own, but one is null or comes twice")
    absent = [table.column(index).is_null() for index in range(1, 1 + key_columns)]
    if any(not column.equals(absent[0]) for column in absent):
        raise StateLayoutError("a position has a value for every key column or for none, but one has some")


def described(value: object) -> str:
    """A value of an identity or a layout as error texts show it."""
    if isinstance(value, pa.Schema):
        return ", ".join(f"{field.name} {field.type}" for field in value) or "no column"
    return repr(value)


def differences(stored: DataclassInstance, given: DataclassInstance) -> str:
    """How two identities or layouts differ; empty where they are equal."""
    pairs = ((item.name, getattr(stored, item.name), getattr(given, item.name)) for item in fields(stored))
    differences = ((name, *_apart(old, new)) for name, old, new in pairs if old != new)
    return "; ".join(f"{name}: stored {described(old)}, given {described(new)}" for name, old, new in differences)


def _apart(old: object, new: object) -> tuple[object, object]:
    """The same two values; of two lists of columns only the part between what is alike at their beginnings and ends."""
    if not (isinstance(old, pa.Schema) and isinstance(new, pa.Schema)):
        return old, new
    ones, others = list(old), list(new)
    for end in (0, -1):
        while ones and others and ones[end] == others[end]:
            del ones[end], others[end]
    return pa.schema(ones), pa.schema(others)
