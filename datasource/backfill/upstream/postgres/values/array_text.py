"""Array literals such as `{1,NULL,"a,\\"b\\\\"}`, taken apart a whole column at a time.

What array_out writes (PostgreSQL manual, "Array Input and Output Syntax", and `array_out` in arrayfuncs.c): braces
around the elements, the element type's delimiter between them, NULL for a null. In double quotes stands every element
that is empty, looks like NULL, or contains a brace, the delimiter, a quote, a backslash or white space; within quotes a
backslash stands before each quote and backslash. So all that matters outside of quotes is structure, and a backslash is
only ever inside.

The steps are those of simdjson: which bytes are escaped, from the length of the run of backslashes before them;
which are inside quotes, from the parity of the quotes so far; then the structure is what is left.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from backfill.arrow.arrays import Mask
from backfill.upstream.postgres.values.flat import Elements, Flat, bitmap, flatten
from backfill.upstream.postgres.values.text import UnreadableTextError

_OPEN: Final = ord("{")
_CLOSE: Final = ord("}")
_QUOTE: Final = ord('"')
_BACKSLASH: Final = ord("\\")

Bytes = NDArray[np.uint8]
Positions = NDArray[np.int64]


def split_arrays(text: pa.Array[Any], delimiter: str) -> Elements:
    """The elements of one-dimensional array literals whose first index is 1, as binary values; UnreadableTextError for
    others.
    """
    flat = flatten(text)
    data = flat.data
    _require_braces(flat)
    escaper, quote = _quotation(data)
    structure = _structure(data, quote, delimiter)
    cuts = np.flatnonzero(structure)
    opens, closes = data[cuts] == _OPEN, data[cuts] == _CLOSE
    if not (np.array_equal(cuts[opens], flat.start) and np.array_equal(cuts[closes], flat.end - 1)):
        raise UnreadableTextError("an array of more than one dimension")
    # Each cut but a literal's last begins an element, and each but its first ends one.
    start, end = cuts[~closes] + 1, cuts[~opens]
    of_value = np.cumsum(opens)[~closes] - 1
    # {} has no element, whereas {""} has one.
    real = (flat.end - flat.start > 2)[of_value]
    start, end, of_value = start[real], end[real], of_value[real]
    counts = np.bincount(of_value, minlength=len(flat.start))
    keep = ~(structure | quote | escaper)
    return Elements(flat.offsets(counts), flat.validity(), _gather(data, keep, start, end))


def _require_braces(flat: Flat) -> None:
    if (flat.end - flat.start < 2).any():
        raise UnreadableTextError("a text that is not an array")
    if not ((flat.data[flat.start] == _OPEN) & (flat.data[flat.end - 1] == _CLOSE)).all():
        # Such an array is written with its bounds: [0:1]={1,2}.
        raise UnreadableTextError("an array whose first index is not 1")


def _quotation(data: Bytes) -> tuple[Mask, Mask]:
    """Which bytes are backslashes that escape the byte after them, and which are quotes around an element."""
    quote = data == _QUOTE
    escaper = np.zeros(len(data), np.bool_)
    at = np.flatnonzero(data == _BACKSLASH)
    if len(at):
        # Within a run of backslashes the first escapes the second, the third the fourth, and so on. The last byte
        # of all is a brace, so there is a byte after each.
        ordinal = np.arange(len(at))
        begins = np.concatenate([[True], np.diff(at) != 1])
        in_run = ordinal - np.maximum.accumulate(np.where(begins, ordinal, 0))
        escaping = at[in_run % 2 == 0]
        escaper[escaping] = True
        quote[escaping + 1] = False
    return escaper, quote


def _structure(data: Bytes, quote: Mask, delimiter: str) -> Mask:
    """Which bytes are braces and delimiters outside of quotes."""
    structure: Mask = (data == ord(delimiter)) | (data == _OPEN) | (data == _CLOSE)
    if quote.any():
        # The count may wrap around: only its parity matters. Quotes come in pairs, so it is even between literals.
        structure &= np.cumsum(quote, dtype=np.uint8) & 1 == 0
    return structure


def _gather(data: Bytes, keep: Mask, start: Positions, end: Positions) -> pa.Array[Any]:
    """The kept bytes of each span as a value; a bare NULL as a null."""
    null = _is_null(data, start, end)
    keep[(start[null][:, np.newaxis] + np.arange(4)).ravel()] = False
    before = np.concatenate([np.zeros(1, np.int32), np.cumsum(keep, dtype=np.int32)])
    # All that is kept lies in some span, so the values follow each other without a gap.
    offsets = np.concatenate([before[:1], before[end]])
    content = pa.py_buffer(data[keep].data)
    return pa.Array.from_buffers(pa.binary(), len(start), [bitmap(~null), pa.py_buffer(offsets.data), content])


def _is_null(data: Bytes, start: Positions, end: Positions) -> Mask:
    null: Mask = end - start == 4
    for place, byte in enumerate(b"NULL"):
        # Only spans of four bytes are looked at; elsewhere the place may lie beyond the data.
        null[null] = data[start[null] + place] == byte
    return null
