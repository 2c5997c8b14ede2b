"""What the files' statistics say of columns, for which values they are not right, and leaving out files by them."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from backfill.arrow.decimals import is_text
from backfill.upstream.delta.files.column_names import stored_names
from backfill.upstream.delta.keys.columns import KeyColumn, KeyColumns
from backfill.vnode import Coverage

_MISREAD: Final = 1 << 56
"""A moment of the year 4253, in microseconds since 1970. If all times of a file are in one millisecond after that, and
files are left out by that column, `deltalake` (1.6) gives them without their microseconds.
"""

_MISREAD_TEXT: Final = "[\U00010000-\U0010ffff]"
"""A character that a log may have as an escape (`\\ud842\\udfb7`, as Python's json writes it). `deltalake` (1.6) takes
every second 65,536 of these for the 65,536 before: U+20BB7 for U+10BB7, which is less, so it would leave out files that
have such keys.
"""

_EXACT_DIGITS: Final = 15
"""Decimals of more digits are not exact: in statistics they are numbers of JSON, floating point to `deltalake`."""


def statistics(table: DeltaTable, actions: pa.Table, name: str, *kinds: str) -> list[pa.ChunkedArray[Any] | None]:
    """What the files' add actions, flattened, say of the column: `min`, `max` or `null_count`; None where that is not
    known.

    Nor is it known where a field of a struct comes under the same name.
    """
    [stored] = stored_names(table, [name])
    return [_statistic(actions, f"{kind}.{stored}") for kind in kinds]


def _statistic(actions: pa.Table, name: str) -> pa.ChunkedArray[Any] | None:
    return actions[name] if actions.column_names.count(name) == 1 else None


def ends(table: DeltaTable, column: KeyColumn) -> tuple[Any, Any]:
    """The least and the greatest value in each file; null where it is not known."""
    actions = pa.table(table.get_add_actions(flatten=True))
    partition = _statistic(actions, f"partition.{column.name}")

    def found(known: pa.ChunkedArray[Any] | None) -> Any:
        known = partition if known is None else known
        values = pa.nulls(actions.num_rows) if known is None else known.combine_chunks()
        return values.cast(column.type)

    least, greatest = map(found, statistics(table, actions, column.name, "min", "max"))
    return least, greatest


def leaving_out(table: DeltaTable, key: KeyColumns, coverage: Coverage) -> str | None:
    """SQL that holds for every key in these ranges, and for few others, by which files are left out; or None."""
    column = key.columns[0]
    return None if _misreads(table, column) else key.predicate(coverage)


def may_miss(table: DeltaTable, name: str, values: pa.ChunkedArray[Any]) -> bool:
    """Whether `deltalake` may leave out a file that has one of these values in the column where it looks for them: then
    a MERGE would insert a second row.

    The statistics do not know NaN.
    """
    kind = values.type
    if pa.types.is_timestamp(kind):
        latest = pc.max(values.cast(pa.int64())).as_py()
        return latest is not None and latest >= _MISREAD
    if is_text(kind):
        rare = pc.any(pc.match_substring_regex(values, _MISREAD_TEXT)).as_py()
        return bool(rare) and _misreads(table, KeyColumn(name, pa.string()))
    return pa.types.is_floating(kind) or _are_inexact(kind)


def _misreads(table: DeltaTable, column: KeyColumn) -> bool:
    """Whether `deltalake` may take what the statistics say for something else, and leaves out files by that."""
    if pa.types.is_timestamp(column.type):
        last: Any = pc.max(column.comparable(ends(table, column)[1]))
        return bool(last.is_valid and last.as_py() >= _MISREAD)
    if column.type == pa.string():
        found: Any = pc.any(pc.match_substring_regex(ends(table, column)[1], _MISREAD_TEXT))
        return bool(found.as_py())
    return _are_inexact(column.type)


def _are_inexact(kind: pa.DataType) -> bool:
    return pa.types.is_decimal(kind) and kind.precision > _EXACT_DIGITS
