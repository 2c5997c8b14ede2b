"""A batch's columns in the types of a Delta table, which have to hold every value as it is.

`deltalake` would cast them by itself, and round and cut in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from backfill.arrow.decimals import are_same, as_decimals, is_text
from backfill.arrow.sameness import same
from backfill.errors import TableError
from backfill.sinks.compacted import large
from backfill.upstream.delta.tables.types import arrow_type


def fitted(rows: pa.Table, table: DeltaTable) -> pa.Table:
    """The rows in the types of the table's columns of the same names; TableError where one cannot hold a value.

    Text and bytes stay in their `large` types. For a float or double, the value nearest to a number will do.
    """
    types: Mapping[str, Any] = {field.name: field.type for field in table.schema().fields}
    columns = [_fitted(name, rows[name], arrow_type(name, types[name])) for name in rows.column_names]
    return pa.table(columns, rows.column_names)


def _fitted(name: str, values: pa.ChunkedArray[Any], wanted: pa.DataType) -> pa.ChunkedArray[Any]:
    if values.type in (wanted, large(wanted)):
        return values
    try:
        found = _cast(values, wanted)
        if _overflows(values, found):
            raise pa.ArrowInvalid
        if not _may_lose(values.type, wanted) or _equal(found.cast(values.type), values):
            return found
    except pa.ArrowException:
        pass  # The error's text may have a value in it.
    raise TableError(
        f"the column {name!r} of the Delta table is {wanted} and cannot hold all values of the batch, where it is "
        f"{values.type}. Give the table a column of that type, or cast it in foreachBatch"
    )


def _cast(values: pa.ChunkedArray[Any], wanted: pa.DataType) -> pa.ChunkedArray[Any]:
    if pa.types.is_decimal128(wanted) and is_text(values.type):
        return _decimals(values.chunks, wanted)
    return values.cast(_exactly(values.type, wanted)).cast(wanted)


def _exactly(kind: Any, wanted: Any) -> Any:
    """The type, with text in place of decimals that become floats: from a decimal, Arrow (26) does not always find the
    nearest float.
    """
    if pa.types.is_list(kind) and pa.types.is_list(wanted):
        return pa.list_(kind.value_field.with_type(_exactly(kind.value_type, wanted.value_type)))
    return pa.string() if pa.types.is_floating(wanted) and pa.types.is_decimal(kind) else kind


def _decimals(chunks: list[pa.Array[Any]], wanted: Any) -> pa.ChunkedArray[Any]:
    found: pa.ChunkedArray[Any] = pa.chunked_array([as_decimals(chunk, wanted) for chunk in chunks], wanted)
    return found


def _overflows(values: Any, found: Any) -> bool:
    """Whether a cast made another number of one, or an infinity of what was none, number or text; in lists as well."""
    while pa.types.is_list(found.type):
        values, found = pc.list_flatten(values), pc.list_flatten(found)
    if pa.types.is_decimal(found.type):
        return not are_same(values, found)
    if not pa.types.is_floating(found.type):
        return False
    infinite = values.filter(pc.fill_null(pc.is_inf(found), False))
    if pa.types.is_floating(infinite.type):
        infinite_before = pc.is_inf(infinite)
    else:
        infinite_before = pc.match_substring(infinite.cast(pa.large_string()), "inf", ignore_case=True)
    return not pc.all(infinite_before, min_count=0).as_py()


def _may_lose(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a cast that Arrow takes for safe may lose something; it leaves out fields of structs, for one."""
    if pa.types.is_list(found) and pa.types.is_list(wanted):
        return _may_lose(found.value_type, wanted.value_type)
    return (
        pa.types.is_nested(found)
        or (pa.types.is_timestamp(found) and pa.types.is_date(wanted))
        or (pa.types.is_floating(found) and pa.types.is_decimal(wanted))
        or (pa.types.is_primitive(found) and pa.types.is_boolean(wanted))
    )


def _equal(one: pa.ChunkedArray[Any], other: pa.ChunkedArray[Any]) -> bool:
    return all(same(*chunks).all() for chunks in zip(one.chunks, other.chunks, strict=True))
