"""Which Arrow type a column of PostgreSQL becomes, and how its values get there.

There are two ways into one type. Changes come as the text of the type's output function. Snapshot rows come natively,
in the driver's Arrow form of the binary format, where that form is exact and cheap; arrays of numbers and the like come
packed, in their own binary form; for all other types the SELECT asks for the same output function's text. So whatever
has no Arrow type of its own is that text, without loss.

| PostgreSQL                                   | Arrow                            | snapshot |
|----------------------------------------------|----------------------------------|----------|
| bool, int2, int4, int8, float4, float8       | bool, int16 … int64, float, double | native |
| oid                                          | int64                            | native, as int8 |
| text, varchar, bpchar (with its blanks), name | string                          | native   |
| bytea                                        | binary                           | native   |
| date, timestamp, timestamptz                 | date32, timestamp[us], timestamp[us, UTC] | native |
| time                                         | string; time64[ns] on request    | text; native |
| numeric(p,s) of at most 38 digits            | decimal128                       | text     |
| numeric with more digits or without precision, where NaN and any scale may occur | string | text |
| arrays of one dimension                      | list<element>                    | packed (`_PACKED`), or text |
| everything else                              | string                           | text     |

A domain is what its base type is. The driver's own numeric is slower than the text, its uuid an extension type that
Spark does not know, its arrays lose their dimensions. An array's text takes three times as long as its binary form, or
more.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from psycopg import sql

from backfill.arrow.decimals import MOST_DIGITS
from backfill.errors import BackfillError, OptionsError, UnsupportedTypeError
from backfill.upstream.postgres.description import ColumnDescription, QualifiedName, TypeDescription
from backfill.upstream.postgres.values.oids import Oid
from backfill.wording import not_read

_VARHDRSZ: Final = 4

_NATIVE: Final[Mapping[int, pa.DataType]] = {
    Oid.BOOL: pa.bool_(),
    Oid.BYTEA: pa.binary(),
    Oid.NAME: pa.string(),
    Oid.INT8: pa.int64(),
    Oid.INT2: pa.int16(),
    Oid.INT4: pa.int32(),
    Oid.TEXT: pa.string(),
    Oid.OID: pa.int64(),
    Oid.FLOAT4: pa.float32(),
    Oid.FLOAT8: pa.float64(),
    Oid.BPCHAR: pa.string(),
    Oid.VARCHAR: pa.string(),
    Oid.DATE: pa.date32(),
    Oid.TIME: pa.time64("ns"),
    Oid.TIMESTAMP: pa.timestamp("us"),
    Oid.TIMESTAMPTZ: pa.timestamp("us", tz="UTC"),
}
_PACKED: Final[Mapping[int, int]] = {
    Oid.BOOL_ARRAY: Oid.BOOL,
    Oid.INT2_ARRAY: Oid.INT2,
    Oid.INT4_ARRAY: Oid.INT4,
    Oid.INT8_ARRAY: Oid.INT8,
    Oid.FLOAT4_ARRAY: Oid.FLOAT4,
    Oid.FLOAT8_ARRAY: Oid.FLOAT8,
    Oid.DATE_ARRAY: Oid.DATE,
    Oid.TIMESTAMP_ARRAY: Oid.TIMESTAMP,
    Oid.TIMESTAMPTZ_ARRAY: Oid.TIMESTAMPTZ,
}
"""Arrays that `array_binary` reads, with their elements' types."""

_DECIMAL: Final = re.compile(r"DECIMAL\((\d+),(-?\d+)\)")


class Source(enum.Enum):
    """What the snapshot's SELECT asks for: the column itself, the column as int8, an array's binary form, its text."""

    NATIVE = "native"
    INT8 = "int8"
    PACKED = "packed"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class MappedColumn:
    """A column and the Arrow type in which Spark gets it. Picklable: executors decode with it.

    `type_oid` and `declared` are the column's declared type, `output` its output function. `delimiter` separates the
    elements of a list's text, and is empty where the column is no list. `packed` is the type of a packed array's
    elements, and 0 elsewhere.
    """

    name: str
    attnum: int
    type_oid: int
    declared: str
    arrow: pa.DataType
    source: Source
    output: QualifiedName | None
    delimiter: str
    packed: int


def map_columns(columns: Sequence[ColumnDescription], overrides: Mapping[str, str]) -> tuple[MappedColumn, ...]:
    """The columns with the types of `customSchema` where it names them; all problems are reported together."""
    problems: list[BackfillError] = []
    names = [column.name for column in columns]
    problems.extend(OptionsError(not_read("customSchema", name, names)) for name in overrides if name not in names)
    mapped = []
    for column in columns:
        try:
            mapped.append(map_column(column, overrides.get(column.name)))
        except (OptionsError, UnsupportedTypeError) as problem:
            problems.append(problem)
    if problems:
        kind = OptionsError if any(isinstance(each, OptionsError) for each in problems) else UnsupportedTypeError
        raise kind("; ".join(each.message for each in problems))
    return tuple(mapped)


def map_column(column: ColumnDescription, override: str | None = None) -> MappedColumn:
    """The column with its own type, or with the one `customSchema` gives it, in capitals and without blanks.

    That is STRING for any column, DECIMAL(p,s) for a numeric, TIME for a time.
    """
    if column.type.kind == "p":
        raise UnsupportedTypeError(f"column {column.name!r} has the pseudo-type {column.declared}, which has no values")
    arrow = _arrow(column.type) if override is None else _overridden(column, override)
    packed = _PACKED.get(column.type.oid, 0) if pa.types.is_list(arrow) else 0
    return MappedColumn(
        name=column.name,
        attnum=column.attnum,
        type_oid=column.type_oid,
        declared=column.declared,
        arrow=arrow,
        source=Source.PACKED if packed else _source(column.type.oid, arrow),
        output=column.type.output,
        delimiter=column.type.element.delimiter if column.type.element and pa.types.is_list(arrow) else "",
        packed=packed,
    )


def _source(oid: int, arrow: pa.DataType) -> Source:
    if arrow != _NATIVE.get(oid):
        return Source.TEXT
    return Source.INT8 if oid == Oid.OID else Source.NATIVE


def snapshot_expression(mapped: MappedColumn) -> sql.Composable:
    """What a SELECT has to ask for, so that `from_snapshot` understands the answer."""
    column = sql.Identifier(mapped.name)
    match mapped.source:
        case Source.NATIVE:
            return column
        case Source.INT8:
            # The driver would give an oid as a signed 32-bit number.
            return sql.SQL("{}::pg_catalog.int8").format(column)
        case Source.PACKED:
            return sql.SQL("pg_catalog.array_send({})").format(column)
        case Source.TEXT:
            return output_text(column, mapped.output)


def output_text(column: sql.Composable, output: QualifiedName | None) -> sql.Composable:
    """The text that pgoutput sends for this value.

    The cast to text would not do: for bool, bpchar, inet and some others it writes something else.
    """
    if output is not None:
        return sql.SQL("pg_catalog.textin({}({}))").format(output.identifier(), column)
    # concat() calls the output function of whatever it is given, but makes an empty text of a null. Not IS NULL, which
    # also holds for a composite value of nulls.
    return sql.SQL("CASE WHEN {0} IS DISTINCT FROM NULL THEN pg_catalog.concat({0}) END").format(column)


def _arrow(described: TypeDescription) -> pa.DataType:
    if described.element is not None:
        # An element can only be an array itself by way of a domain; then it stays text.
        nested = described.element.element is not None
        return pa.list_(pa.field("element", pa.string() if nested else _arrow(described.element)))
    if described.oid == Oid.NUMERIC:
        return _numeric(described.typmod)
    if described.oid == Oid.TIME:
        # Spark 4.3 refuses TIME in a stream unless a session setting allows it, which a source cannot see.
        return pa.string()
    return _NATIVE.get(described.oid, pa.string())


def _numeric(typmod: int) -> pa.DataType:
    if typmod < _VARHDRSZ:
        return pa.string()
    # numeric.c: precision above, then since version 15 a signed scale of 11 bits.
    precision = (typmod - _VARHDRSZ) >> 16
    scale = (((typmod - _VARHDRSZ) & 0x7FF) ^ 0x400) - 0x400
    digits = max(precision - min(scale, 0), scale)
    return pa.decimal128(digits, max(scale, 0)) if digits <= MOST_DIGITS else pa.string()


def _overridden(column: ColumnDescription, override: str) -> pa.DataType:
    if override == "STRING":
        return pa.string()
    decimal = _DECIMAL.fullmatch(override)
    if decimal is not None and column.type.oid == Oid.NUMERIC:
        precision, scale = int(decimal[1]), int(decimal[2])
        if 1 <= precision <= MOST_DIGITS and 0 <= scale <= precision:
            return pa.decimal128(precision, scale)
    if override == "TIME" and column.type.oid == Oid.TIME:
        return _NATIVE[Oid.TIME]
    also: Mapping[int, str] = {Oid.NUMERIC: " or DECIMAL(p,s) with 0 <= s <= p <= 38", Oid.TIME: " or TIME"}
    allowed = f"STRING{also.get(column.type.oid, '')}"
    raise OptionsError(
        f"customSchema gives {column.name!r} the type {override}; allowed for {column.declared} is {allowed}"
    )
