"""Decimals made from other values: the same numbers, or an error. Arrow (26) misses some values that are too large."""

from __future__ import annotations

from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

MOST_DIGITS: Final = 38
"""How many digits a decimal of 128 bits has at the most."""


def as_decimals(text: pa.Array[Any], to: pa.Decimal128Type[Any, Any]) -> pa.Array[Any]:
    """Casts numbers written with digits and a point; raises pa.ArrowInvalid, which may quote one, where one is too much
    for the type.
    """
    if _are_short(text, max(to.scale, 0)):
        return text.cast(to)
    try:
        found = text.cast(to)
    except pa.ArrowInvalid:
        pass
    else:
        if are_same(text, found):
            return found
    # Perhaps the only digits too many are zeros at the end.
    text = pc.replace_substring_regex(text, r"(\.\d*[1-9])0+$|\.0+$", r"\1")
    found = text.cast(to)
    if not are_same(text, found):
        raise pa.ArrowInvalid("more digits than the type has")
    return found


def _are_short(text: pa.Array[Any], scale: int) -> bool:
    """Whether the texts are so short, before the point and in all, that Arrow is sure to read each as it is."""
    texts = cast("pa.StringArray", text)
    longest = pc.max(pc.binary_length(texts)).as_py() or 0
    if longest + scale <= MOST_DIGITS:
        return True
    if longest > MOST_DIGITS:
        return False
    points = pc.find_substring(texts, ".")
    first, last = pc.min(points).as_py() or 0, pc.max(points).as_py() or 0
    return first > 0 and last + scale <= MOST_DIGITS


def is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def are_same(values: Any, found: Any) -> bool:
    """Whether decimals are still the numbers that they were cast from, which are numbers or texts.

    A number that overflows is off by a multiple of 2^128 units, while the type holds less than 2^127: that is more than
    half of the greater of both, so it shows in the first digits. And a text with more than 38 digits after the point
    may become zero.
    """
    given = (pc.utf8_ltrim(values, "+") if is_text(values.type) else values).cast(pa.float64())
    one, other = (side.fill_null(0).to_numpy() for side in (given, found.cast(pa.float64())))
    if is_text(values.type):
        has_digit = pc.match_substring_regex(values, "^[^eE]*[1-9]").fill_null(False).to_numpy(zero_copy_only=False)
        if (has_digit & (other == 0)).any():
            return False
    return bool(np.isclose(one, other, rtol=1e-6, atol=0).all())
