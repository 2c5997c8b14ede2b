"""The text that PostgreSQL's output functions write, read as Arrow; whole arrays at a time.

The text is that of a session under `session.settings`: ISO dates in UTC, bytea as hex, floats as short as is exact
(PostgreSQL manual, "Date/Time Output", "bytea Hex Format" and `extra_float_digits`). Arrow's own parsers do most of it.
Where they read more than PostgreSQL writes, nothing is lost; where they read less, the Arrow type cannot hold the value
either.
"""

from __future__ import annotations

import binascii
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backfill.arrow.decimals import as_decimals
from backfill.upstream.postgres.values.flat import flatten


class UnreadableTextError(ValueError):
    """A text that stands for nothing the Arrow type can hold; says why in general, never what it was."""


class NotUtf8Error(UnreadableTextError):
    """Bytes that are no text at all, so the column cannot be read as text either."""


def parse_text(text: pa.Array[Any], to: pa.DataType) -> pa.Array[Any]:
    """The values of a string or binary array as `to`, any type but a list; nulls stay null."""
    match to:
        case _ if pa.types.is_string(to):
            return _utf8(text)
        case _ if pa.types.is_binary(to):
            return _bytea(unchecked(text))
        case _ if pa.types.is_boolean(to):
            return _bool(unchecked(text))
        case _ if pa.types.is_time64(to):
            return _time(unchecked(text)).cast(to)
        case _:
            return _cast(unchecked(text), to)


def unchecked(text: pa.Array[Any]) -> pa.Array[Any]:
    """The same bytes as a string array; whoever parses them refuses what is not ASCII."""
    return text.view(pa.string())


def _utf8(text: pa.Array[Any]) -> pa.Array[Any]:
    try:
        # Arrow checks bytes that are cast to a string, not those that are only called one.
        return text.cast(pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        raise NotUtf8Error("text that is not UTF-8") from None


def _cast(text: pa.Array[Any], to: pa.DataType) -> pa.Array[Any]:
    try:
        return as_decimals(text, to) if isinstance(to, pa.Decimal128Type) else text.cast(to)
    except pa.ArrowInvalid:
        # Arrow's message quotes the value.
        raise UnreadableTextError(_limits(to)) from None


def _limits(to: pa.DataType) -> str:
    if pa.types.is_date(to) or pa.types.is_timestamp(to):
        return "infinity, or a year outside 1 to 9999"
    if pa.types.is_decimal(to):
        return f"NaN, infinity, or more digits than DECIMAL({to.precision},{to.scale}) has"
    return f"a text that is not {to}"


def _bool(text: pa.Array[Any]) -> pa.Array[Any]:
    true = pc.equal(text, pa.scalar("t"))
    if pc.all(pc.or_(true, pc.equal(text, pa.scalar("f")))).as_py() is False:
        raise UnreadableTextError("a text that is neither t nor f")
    return true


def _time(text: pa.Array[Any]) -> pa.Array[Any]:
    # Arrow has no cast from text to a time. Its timestamps refuse 24:00:00, as they should.
    moments = _prefixed("1970-01-01 ", text)
    try:
        return moments.cast(pa.timestamp("us")).cast(pa.time64("us"))
    except pa.ArrowInvalid:
        raise UnreadableTextError("24:00:00") from None


def _bytea(text: pa.Array[Any]) -> pa.Array[Any]:
    """The bytes that hex format stands for: `\\x`, then two digits for each byte."""
    flat = flatten(text)
    lengths = flat.end - flat.start
    if not ((lengths >= 2) & (lengths % 2 == 0)).all():
        raise UnreadableTextError("a bytea that is not in hex format")
    if not ((flat.data[flat.start] == ord("\\")) & (flat.data[flat.start + 1] == ord("x"))).all():
        raise UnreadableTextError("a bytea that is not in hex format")
    digits = np.ones(len(flat.data), np.bool_)
    digits[flat.start], digits[flat.start + 1] = False, False
    try:
        content = binascii.unhexlify(flat.data[digits].tobytes())
    except binascii.Error:
        raise UnreadableTextError("a bytea that is not in hex format") from None
    offsets = pa.py_buffer(flat.offsets(lengths // 2 - 1).data)
    return pa.Array.from_buffers(pa.binary(), len(text), [flat.validity(), offsets, pa.py_buffer(content)])


def format_hex(values: pa.Array[Any]) -> pa.Array[Any]:
    """Bytes as bytea's hex format."""
    flat = flatten(values)
    digits = pa.py_buffer(binascii.hexlify(flat.data.tobytes()))
    offsets = pa.py_buffer(flat.offsets(2 * (flat.end - flat.start)).data)
    hexed = pa.Array.from_buffers(pa.string(), len(values), [flat.validity(), offsets, digits])
    return _prefixed("\\x", hexed)


def format_decimal(values: pa.Array[Any]) -> pa.Array[Any]:
    """Decimals with all their digits; Arrow itself would write small ones with an exponent."""
    scale = values.type.scale
    whole = values.view(pa.decimal128(38, 0)) if scale else values
    digits = pc.utf8_lpad(pc.abs(whole).cast(pa.string()), scale + 1, "0")
    if scale:
        digits = _joined(pc.utf8_slice_codeunits(digits, 0, -scale), ".", pc.utf8_slice_codeunits(digits, -scale))
    sign = pc.if_else(pc.less(whole, pa.scalar(0)), pa.scalar("-"), pa.scalar(""))
    return _joined(sign, "", digits)


def format_moment(values: pa.Array[Any]) -> pa.Array[Any]:
    """Moments in UTC. Arrow itself looks up that zone too in the system's files, which some images do not have."""
    return _joined(values.cast(pa.timestamp("us")).cast(pa.string()), "", pa.scalar("Z"))


def _prefixed(prefix: str, text: pa.Array[Any]) -> pa.Array[Any]:
    return _joined(pa.scalar(prefix), "", text)


def _joined(
    left: pa.Array[Any] | pa.StringScalar, middle: str, right: pa.Array[Any] | pa.StringScalar
) -> pa.Array[Any]:
    options = pc.JoinOptions("emit_null")
    joined: pa.Array[Any] = pc.call_function("binary_join_element_wise", [left, right, pa.scalar(middle)], options)
    return joined
