"""What a column may be in a Parquet file that belongs to a Delta table, beside the type that the table gives it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from backfill.held import holds


def is_form_of(declared: pa.DataType, found: pa.DataType) -> bool:
    """Whether the type of a file's column is a form of the one that the table declares, or one that this holds.

    Writers are free in the form: whole numbers of another width, texts as bytes, times without a zone, dictionaries. A
    value that does not fit is refused by a safe cast. Not so where a cast would cut or round, or where the text of a
    value would be read as another one: the column had another type when that file was written.
    """
    if isinstance(found, pa.BaseExtensionType):
        return is_form_of(declared, found.storage_type)
    if pt.is_dictionary(found):
        return is_form_of(declared, _of(found).value_type)
    if pt.is_list(declared):
        return hasattr(found, "value_type") and is_form_of(_of(declared).value_type, _of(found).value_type)
    if pt.is_map(declared) and pt.is_map(found):
        return is_form_of(declared.key_type, found.key_type) and is_form_of(declared.item_type, found.item_type)
    if pt.is_struct(declared) and pt.is_struct(found):
        types = {field.name: field.type for field in declared}
        return all(field.name in types and is_form_of(types[field.name], field.type) for field in found)
    alike = (pt.is_integer, pt.is_decimal, _is_bytes, _is_time)
    return holds(declared, found) or any(kind(declared) and kind(found) for kind in alike)


def _of(kind: Any) -> Any:
    return kind


def _is_bytes(kind: pa.DataType) -> bool:
    of_bytes = (
        pt.is_string,
        pt.is_large_string,
        pt.is_string_view,
        pt.is_binary,
        pt.is_large_binary,
        pt.is_binary_view,
    )
    return any(form(kind) for form in of_bytes) or pt.is_fixed_size_binary(kind)


def _is_time(kind: pa.DataType) -> bool:
    return bool(pt.is_timestamp(kind))
