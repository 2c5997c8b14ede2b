"""Delta's types as Arrow's. Every one of them that Spark has as well is carried without loss; others are refused."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Final

import pyarrow as pa
from deltalake.schema import ArrayType, MapType, PrimitiveType, StructType

from backfill.errors import UnsupportedTypeError

_PRIMITIVES: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_DECIMAL: Final = re.compile(r"decimal\((\d+),\s*(\d+)\)")


def misread(columns: pa.Schema, partitioned_by: Collection[str]) -> list[str]:
    """The columns of bytes that partition the table: `deltalake` (1.6) takes the log's text for the value itself."""
    kinds = (pa.binary(), pa.large_binary())
    return [field.name for field in columns if field.name in partitioned_by and field.type in kinds]


def arrow_type(column: str, kind: Any) -> pa.DataType:
    """The column's Arrow type; UnsupportedTypeError names the column and the way out."""
    match kind:
        case PrimitiveType():
            return _primitive(column, kind.type)
        case ArrayType():
            return pa.list_(arrow_type(column, kind.element_type))
        case MapType():
            return pa.map_(arrow_type(column, kind.key_type), arrow_type(column, kind.value_type))
        case StructType():
            return pa.struct([pa.field(item.name, arrow_type(column, item.type)) for item in kind.fields])
        case _:
            raise _refused(column, type_name(kind))


def type_name(kind: Any) -> str:
    """The type as one reads it."""
    return str(kind.type) if isinstance(kind, PrimitiveType) else str(kind)


def _primitive(column: str, name: str) -> pa.DataType:
    found = _PRIMITIVES.get(name)
    if found is None and (decimal := _DECIMAL.fullmatch(name)) is not None:
        found = pa.decimal128(int(decimal[1]), int(decimal[2]))
    if found is None:
        raise _refused(column, name)
    return found


def _refused(column: str, name: str) -> UnsupportedTypeError:
    return UnsupportedTypeError(
        f"column {column!r} has the type {name}, which cannot be carried without loss; leave it out with the option "
        "columns, or give the table a column with its text"
    )
