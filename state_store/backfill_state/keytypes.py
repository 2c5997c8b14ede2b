"""The types a key column may have: each Arrow type with the one DuckDB type that holds all of its values.

The relation is one to one, so that a stored column's DuckDB type is all that has to be kept to give back the Arrow
type. A type is listed only if every value comes back as it was, at the ends of its range as well. What `upsert.codec`
stores is made of some of them.
"""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa

from backfill_state.errors import StateLayoutError

_TYPES: Final[tuple[tuple[pa.DataType, str], ...]] = (
    (pa.int8(), "TINYINT"),
    (pa.int16(), "SMALLINT"),
    (pa.int32(), "INTEGER"),
    (pa.int64(), "BIGINT"),
    (pa.uint8(), "UTINYINT"),
    (pa.uint16(), "USMALLINT"),
    (pa.uint32(), "UINTEGER"),
    (pa.uint64(), "UBIGINT"),
    (pa.float32(), "FLOAT"),
    (pa.float64(), "DOUBLE"),
    (pa.bool_(), "BOOLEAN"),
    (pa.string(), "VARCHAR"),
    (pa.binary(), "BLOB"),
    (pa.date32(), "DATE"),
    (pa.time64("us"), "TIME"),
    (pa.time64("ns"), "TIME_NS"),
    (pa.timestamp("us"), "TIMESTAMP"),
    (pa.timestamp("us", tz="UTC"), "TIMESTAMP WITH TIME ZONE"),
)

_TO_DUCKDB: Final = dict(_TYPES)
_TO_ARROW: Final = {duckdb_type: arrow for arrow, duckdb_type in _TYPES}
_DECIMAL: Final = re.compile(r"DECIMAL\((\d+),(\d+)\)")


def to_duckdb(column: str, arrow: pa.DataType) -> str:
    """The DuckDB type of a key column; `column` is its name in the error if there is none."""
    if isinstance(arrow, pa.Decimal128Type) and 0 <= arrow.scale <= arrow.precision:
        return f"DECIMAL({arrow.precision},{arrow.scale})"
    if arrow in _TO_DUCKDB:
        return _TO_DUCKDB[arrow]
    known = ", ".join(str(item) for item, _ in _TYPES)
    raise StateLayoutError(
        f"key column {column!r} has type {arrow}, which the state store cannot hold; it holds {known}, and "
        "decimal128(precision, scale) with 0 <= scale <= precision"
    )


def to_arrow(duckdb_type: str) -> pa.DataType:
    """The Arrow type that `to_duckdb` gave this name to. Raises KeyError for a name it never gives."""
    decimal = _DECIMAL.fullmatch(duckdb_type)
    if decimal is not None:
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    return _TO_ARROW[duckdb_type]
