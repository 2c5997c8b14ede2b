"""The values of a column on their way into Arrow, and keys on their way back to PostgreSQL.

Whichever way a value comes, it arrives as the same Arrow value of exactly the type `MappedColumn.arrow`, or as a
ValueOutOfRangeError that names the column.
"""

from __future__ import annotations

import enum
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backfill.errors import SchemaChangedError, ValueOutOfRangeError
from backfill.upstream.postgres.values.array_binary import OtherElementsError, unpack_arrays
from backfill.upstream.postgres.values.array_text import split_arrays
from backfill.upstream.postgres.values.text import (
    NotUtf8Error,
    UnreadableTextError,
    format_decimal,
    format_hex,
    format_moment,
    parse_text,
    unchecked,
)
from backfill.upstream.postgres.values.types import MappedColumn, Source
from backfill.wording import FRESH_START, in_option

_DAY: Final = 86_400_000_000  # microseconds
_FIRST_DAY: Final = int(np.datetime64("0001-01-01", "D").astype(np.int64))
_LAST_DAY: Final = int(np.datetime64("9999-12-31", "D").astype(np.int64))

_MONEY: Final = ("money", "_money")
"""Types that the driver gives as whole numbers as well; they are only ever asked for as text."""


class _FoundIn(enum.Enum):
    """Where a value that Spark cannot hold was found; the text says what to do about it there."""

    KEY = "Start the query again {instead}"
    ROW = "Mend the row and start the query again; or start it {instead}"
    CHANGE = (
        "The change stays in the log, also after the row is mended: start the query again {instead}, at least until "
        "it is past the change"
    )


def decode_text(mapped: MappedColumn, text: pa.Array[Any]) -> pa.Array[Any]:
    """The values that a string or binary array of output-function text stands for; nulls stay null."""
    return _parsed(mapped, text, _FoundIn.KEY)


def from_change(mapped: MappedColumn, text: pa.Array[Any]) -> pa.Array[Any]:
    """The values that the text in the change log stands for."""
    return _parsed(mapped, text, _FoundIn.CHANGE)


def _parsed(mapped: MappedColumn, text: pa.Array[Any], met: _FoundIn) -> pa.Array[Any]:
    if text.null_count == len(text):
        return _nulls(mapped, len(text))
    try:
        if not pa.types.is_list(mapped.arrow):
            return parse_text(text, mapped.arrow)
        elements = split_arrays(unchecked(text), mapped.delimiter)
        values = parse_text(elements.values, mapped.arrow.value_type)
    except UnreadableTextError as problem:
        raise _out_of_range(mapped, problem, met) from None
    return replace(elements, values=values).lists(mapped.arrow)


def _nulls(mapped: MappedColumn, rows: int) -> pa.Array[Any]:
    to: Any = mapped.arrow  # PyArrow's stubs know no type that is any of them.
    nothing: pa.Array[Any] = pa.nulls(rows, to)
    return nothing


def from_snapshot(mapped: MappedColumn, array: pa.Array[Any], sent: str) -> pa.Array[Any]:
    """The values of what the driver returned for `snapshot_expression`; the server called their type `sent`."""
    match mapped.source:
        case Source.TEXT:
            return _parsed(mapped, array, _FoundIn.ROW)
        case Source.PACKED:
            return _unpacked(mapped, array)
        case Source.NATIVE | Source.INT8:
            return _native(mapped, array, sent)


def _native(mapped: MappedColumn, array: pa.Array[Any], sent: str) -> pa.Array[Any]:
    # Spark's times have nanoseconds in Arrow, PostgreSQL's and the driver's have microseconds.
    driver = pa.time64("us") if pa.types.is_time(mapped.arrow) else mapped.arrow
    if array.type != driver or sent in _MONEY:
        raise _retyped(mapped, sent or str(array.type), str(driver))
    if pa.types.is_string(array.type):
        # The driver passes on whatever bytes the server sends.
        return _parsed(mapped, array, _FoundIn.ROW)
    return _in_range(mapped, array).cast(mapped.arrow)


def _unpacked(mapped: MappedColumn, array: pa.Array[Any]) -> pa.Array[Any]:
    if array.null_count == len(array):
        return _nulls(mapped, len(array))
    try:
        elements = unpack_arrays(array, mapped.packed, mapped.arrow.field(0).type)
    except OtherElementsError as found:
        raise _retyped(mapped, f"an array of the type {found}", f"one of {mapped.packed}") from None
    except UnreadableTextError as problem:
        raise _out_of_range(mapped, problem, _FoundIn.ROW) from None
    return replace(elements, values=_in_range(mapped, elements.values)).lists(mapped.arrow)


def _retyped(mapped: MappedColumn, found: str, expected: str) -> SchemaChangedError:
    return SchemaChangedError(
        f"column {mapped.name!r} was {mapped.declared} when the table was described, and now comes as {found}, "
        f"expected {expected}: its type was changed since. load() the table again, or start the query again. If its "
        "type was not changed, run pip install --upgrade adbc-driver-postgresql on the driver and on every executor"
    )


def _in_range(mapped: MappedColumn, array: pa.Array[Any]) -> pa.Array[Any]:
    """The array, with one kind of NaN; raises where it has values that Spark cannot hold."""
    if pa.types.is_floating(array.type):
        return _one_nan(array)
    _require_in_range(mapped, array)
    return array


def _one_nan(array: pa.Array[Any]) -> pa.Array[Any]:
    """The same floats, with the NaN that the text NaN stands for in place of any other.

    PostgreSQL takes all NaN for equal, and its binary format keeps their bits: that of infinity minus infinity has a
    sign.
    """
    nan = pc.is_nan(array)
    return pc.if_else(nan, pa.scalar(np.nan, array.type), array) if pc.any(nan).as_py() else array


def _require_in_range(mapped: MappedColumn, array: pa.Array[Any]) -> None:
    """Refuses what PostgreSQL can hold and Spark cannot.

    The driver and `array_binary` move the epoch from 2000 to 1970 and let infinity, the largest and smallest number,
    wrap around: it arrives as some day far outside the years 1 to 9999.
    """
    if pa.types.is_date32(array.type):
        _require_between(mapped, array.view(pa.int32()), _FIRST_DAY, _LAST_DAY, "infinity, or a year outside 1 to 9999")
    elif pa.types.is_timestamp(array.type):
        least, most = _FIRST_DAY * _DAY, (_LAST_DAY + 1) * _DAY - 1
        _require_between(mapped, array.view(pa.int64()), least, most, "infinity, or a year outside 1 to 9999")
    elif pa.types.is_time64(array.type):
        _require_between(mapped, array.view(pa.int64()), 0, _DAY - 1, "24:00:00")


def _require_between(mapped: MappedColumn, array: pa.Array[Any], least: int, most: int, otherwise: str) -> None:
    found = pc.min_max(array)
    if found["min"].is_valid and not (least <= found["min"].as_py() and found["max"].as_py() <= most):
        raise _out_of_range(mapped, UnreadableTextError(otherwise), _FoundIn.ROW)


def _out_of_range(mapped: MappedColumn, problem: UnreadableTextError, met: _FoundIn) -> ValueOutOfRangeError:
    instead = "without the column (option columns)"
    if not isinstance(problem, NotUtf8Error):
        instead = f'with .option("customSchema", "{in_option(mapped.name)} STRING"), or {instead}'
    return ValueOutOfRangeError(
        f"column {mapped.name!r} ({mapped.declared}) holds {problem}, which {mapped.arrow} cannot represent. "
        f"{met.value.format(instead=instead)}. With changelog=full or envelope=upsert, and for a key column, another "
        f"type or choice of columns needs a new stream: {FRESH_START}"
    )


def encode_text(array: pa.Array[Any]) -> pa.Array[Any]:
    """Text that the input function of the column's type reads as the same values; nulls stay null.

    It is not always the text that the output function would write: a float may have other digits. Not for lists.
    """
    if pa.types.is_string(array.type):
        return array
    if pa.types.is_binary(array.type):
        return format_hex(array)
    if pa.types.is_boolean(array.type):
        letters: pa.Array[Any] = pc.if_else(array, pa.scalar("t"), pa.scalar("f"))
        return letters
    if pa.types.is_time(array.type):
        return array.cast(pa.time64("us")).cast(pa.string())
    if pa.types.is_decimal128(array.type):
        return format_decimal(array)
    if pa.types.is_timestamp(array.type) and array.type.tz:
        return format_moment(array)
    return array.cast(pa.string())
