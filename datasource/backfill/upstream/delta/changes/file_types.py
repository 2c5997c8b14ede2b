"""What a column may be in a Parquet file that belongs to a Delta table, beside the type that the table gives it."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt

from backfill.arrow.widening import throughout, widens


def is_form_of(declared: pa.DataType, found: pa.DataType) -> bool:
    """Whether the type of a file's column is a form of the one that the table declares, or one whose values that holds.

    Writers are free in the form: whole numbers of another width, texts as bytes, times without a zone, dictionaries. A
    value that does not fit is refused by a safe cast. False where a cast would cut or round, or where the text of a
    value would be read as another one: the column had another type when that file was written.
    """
    return throughout(declared, found, _is_form_of)


def _is_form_of(declared: pa.DataType, found: pa.DataType) -> bool:
    alike = (pt.is_integer, pt.is_decimal, pt.is_timestamp, _is_bytes)
    return widens(declared, found) or any(kind(declared) and kind(found) for kind in alike)


def _is_bytes(kind: pa.DataType) -> bool:
    texts = (pt.is_string, pt.is_large_string, pt.is_string_view)
    blobs = (pt.is_binary, pt.is_large_binary, pt.is_binary_view, pt.is_fixed_size_binary)
    return any(is_form(kind) for is_form in (*texts, *blobs))
