"""What the files' statistics say of the key's first column, and which files are left out by them."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from backfill.upstream.delta.files.column_names import stored_names
from backfill.upstream.delta.keys.columns import KeyColumn, KeyColumns
from backfill.vnode import Coverage

MISREAD: Final = 1 << 56
"""In the year 4253, as microseconds since 1970. Where a file's times are all in one millisecond after that, `deltalake`
(1.6) gives them without their microseconds if it leaves out files by that column.
"""


def statistics(table: DeltaTable, actions: pa.Table, name: str, *kinds: str) -> list[pa.ChunkedArray[Any] | None]:
    """What the files' add actions, flattened, say of the column: `min`, `max` or `null_count`; None where that is not
    known.

    Nor is it where a struct has a field of such a name as well.
    """
    [stored] = stored_names(table, [name])
    return [_said(actions, f"{kind}.{stored}") for kind in kinds]


def _said(actions: pa.Table, name: str) -> pa.ChunkedArray[Any] | None:
    return actions[name] if actions.column_names.count(name) == 1 else None


def ends(table: DeltaTable, column: KeyColumn) -> tuple[Any, Any]:
    """The least and the greatest value in each file; null where it is not known."""
    actions = pa.table(table.get_add_actions(flatten=True))
    partition = _said(actions, f"partition.{column.name}")

    def found(known: pa.ChunkedArray[Any] | None) -> Any:
        known = partition if known is None else known
        values = pa.nulls(actions.num_rows) if known is None else known.combine_chunks()
        return values.cast(column.type)

    least, greatest = map(found, statistics(table, actions, column.name, "min", "max"))
    return least, greatest


def leaving_out(table: DeltaTable, key: KeyColumns, coverage: Coverage) -> str | None:
    """SQL that holds for every key in these ranges, and for few others, by which files are left out; or None."""
    column = key.columns[0]
    if pa.types.is_timestamp(column.type):
        _, greatest = ends(table, column)
        last: Any = pc.max(column.comparable(greatest))
        if last.is_valid and last.as_py() >= MISREAD:
            return None
    return key.predicate(coverage)
