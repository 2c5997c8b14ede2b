"""Which Arrow types are wider than another one, so that they have each of its values as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pt

_DIGITS: Final = {8: 3, 16: 5, 32: 10, 64: 19}
"""How many digits whole numbers of so many bits have at the most."""

_IN_DOUBLE: Final = 32
"""Whole numbers of up to so many bits are held by a double."""


def widens(now: pa.DataType, before: pa.DataType) -> bool:
    """Whether each value of the type `before` is the same in the type `now`, in whatever form Arrow has them.

    A struct of the type `now` may have further fields, which are null then.
    """
    return throughout(now, before, _widens_value)


def throughout(now: Any, before: Any, fits: Callable[[pa.DataType, pa.DataType], bool]) -> bool:
    """Whether `fits` is true of every pair of types that the values of the two are made of. Equal types need no
    check.
    """
    if now == before:
        return True
    if isinstance(before, pa.BaseExtensionType):
        return throughout(now, before.storage_type, fits)
    if pt.is_dictionary(before):
        return throughout(now, before.value_type, fits)
    if _is_list(now) and _is_list(before):
        return throughout(now.value_type, before.value_type, fits)
    if pt.is_map(now) and pt.is_map(before):
        pairs = ((now.key_type, before.key_type), (now.item_type, before.item_type))
        return all(throughout(one, other, fits) for one, other in pairs)
    if pt.is_struct(now) and pt.is_struct(before):
        types = {field.name: field.type for field in now}
        return all(item.name in types and throughout(types[item.name], item.type, fits) for item in before)
    return fits(now, before)


def _widens_value(now: pa.DataType, before: pa.DataType) -> bool:
    if pt.is_null(before) or any(is_of(now) and is_of(before) for is_of in (_is_text, _is_blob)):
        return True
    if pt.is_timestamp(now):
        same_zone = now.tz == (before.tz if pt.is_timestamp(before) else None)
        return bool(same_zone and (pt.is_timestamp(before) or pt.is_date(before)))
    return _widens_number(now, before)


def _widens_number(now: pa.DataType, before: pa.DataType) -> bool:
    if pt.is_decimal(now) and pt.is_decimal(before):
        return bool(now.scale >= before.scale and now.precision - now.scale >= before.precision - before.scale)
    if pt.is_signed_integer(before):
        if pt.is_decimal(now):
            return bool(now.precision - now.scale >= _DIGITS[before.bit_width])
        fits = pt.is_float64(now) and before.bit_width <= _IN_DOUBLE
        return bool(fits or (pt.is_signed_integer(now) and now.bit_width >= before.bit_width))
    return bool(pt.is_floating(now) and pt.is_floating(before) and now.bit_width >= before.bit_width)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind))


def _is_blob(kind: pa.DataType) -> bool:
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_binary_view(kind))


def _is_list(kind: pa.DataType) -> bool:
    forms = (pt.is_list, pt.is_large_list, pt.is_fixed_size_list, pt.is_list_view, pt.is_large_list_view)
    return any(is_form(kind) for is_form in forms)
