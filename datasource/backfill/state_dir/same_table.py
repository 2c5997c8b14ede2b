"""Whether the table is the one that a stream began with, and its key still what the stream goes by."""

from __future__ import annotations

import pyarrow as pa

from backfill.errors import SchemaChangedError, StateError
from backfill.upstream import Upstream
from backfill.wording import ELSEWHERE, FRESH_START, IN_ITS_PLACE
from backfill_state import StreamIdentity


def require_same_table(recorded: StreamIdentity, upstream: Upstream, *, order_matters: bool) -> None:
    """Raises StateError where this is another table, or its key has other columns.

    `order_matters`: what is left to do depends on the order of keys. Then the key's columns must also be in the same
    order (StateError) and of the same types (SchemaChangedError); otherwise both may change.
    """
    now = upstream.identity()
    if recorded.system != now.system:
        raise StateError(
            f"the stream followed system {recorded.system}, and the options lead to system {now.system}; point them "
            f"at the former, or, if that is gone for good, start over with {ELSEWHERE}"
        )
    if recorded.table_id != now.table_id and recorded.table != now.table:
        raise StateError(
            f"the stream began with the table {recorded.table}, and the options name {now.table}; give each table its "
            f"own checkpointLocation and stateDir; {IN_ITS_PLACE}"
        )
    if recorded.table_id != now.table_id:
        raise StateError(
            f"the table {now.table} was dropped and made again since the stream began (it had the id "
            f"{recorded.table_id}, and now has {now.table_id}). If the options lead to another database than before, "
            "name the former; if the table was renamed and another one got its name, name the former table by its "
            f"new name; else start over with {FRESH_START}"
        )
    _require_same_key(now.table, recorded.key, upstream.schema().key_schema, order_matters=order_matters)


def _require_same_key(table: str, began: pa.Schema, key: pa.Schema, *, order_matters: bool) -> None:
    if key.names != began.names and (order_matters or set(key.names) != set(began.names)):
        raise StateError(
            f"the key of {table} is ({', '.join(key.names)}) and was ({', '.join(began.names)}) when the stream "
            "began; give it back these columns in their order (of a Delta table with keyColumns), or start over with "
            f"{FRESH_START}"
        )
    if order_matters and key.types != began.types:
        raise SchemaChangedError(
            f"the key of {table} is ({_typed(key)}) and was ({_typed(began)}) when the stream began, and not all rows "
            "have been read, so it is no longer known which have been. Give it back its type, in the table or with "
            f"the former customSchema; or start over with {FRESH_START}"
        )


def _typed(key: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in key)
