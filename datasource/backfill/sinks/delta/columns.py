"""Checks that the table has the columns of a batch, and can hold them; and adds those that it lacks."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Field

from backfill.arrow.decimals import is_text
from backfill.arrow.widening import widens
from backfill.errors import OptionsError, TableError, UnsupportedTypeError
from backfill.upstream.delta.tables.table import require_partition_values
from backfill.upstream.delta.tables.types import arrow_type

logger = logging.getLogger("backfill")

_NULLS_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"
_PARTITION_ANEW: Final = "Recreate the table, partitioned by another column or not at all"


def require_types(columns: pa.Schema) -> None:
    """Refuses, before the table has any of them, columns that Delta has no type for, or takes for the same one."""
    spelled: dict[str, list[str]] = {}
    for name in columns.names:
        spelled.setdefault(name.lower(), []).append(name)
    alike = [" and ".join(names) for names in spelled.values() if len(names) > 1]
    if alike:
        raise OptionsError(
            f"the batch has the columns {', '.join(alike)}, and Delta's names do not differ by upper and lower case: "
            "rename one of them in foreachBatch, or leave it out"
        )
    for column in columns:
        try:
            kind = Field.from_arrow(column).type
        except Exception:  # noqa: BLE001 - deltalake raises Exception itself
            raise UnsupportedTypeError(
                f"column {column.name!r} is a {column.type}, for which Delta has no type. Make it a string in "
                "foreachBatch, or leave it out"
            ) from None
        arrow_type(column.name, kind)


def require_columns(table: DeltaTable, columns: pa.Schema) -> None:
    """Refuses columns that the table does not have."""
    lacking = _lacking(table, columns)
    if lacking:
        raise OptionsError(
            f"the Delta table has no column {', '.join(column.name for column in lacking)}; it has "
            f"{', '.join(column.name for column in table.schema().fields)}. Add it with merge_schema=True, unless "
            "it belongs to the key; or leave it out of the batch with the stream's option columns"
        )


def add_lacking(table: DeltaTable, columns: pa.Schema, key: Sequence[str]) -> None:
    """Adds the columns that the table lacks, in a commit of its own; they are null in the rows that are there.

    Refuses a table that lacks a column of the key: its rows are told apart by another key.
    """
    lacking = _lacking(table, columns)
    if not lacking:
        return
    require_columns(table, pa.schema([columns.field(name) for name in key]))
    require_types(pa.schema(lacking))
    present = {column.name.lower(): column.name for column in table.schema().fields}
    alike = [f"{column.name} as {present[column.name.lower()]}" for column in lacking if column.name.lower() in present]
    if alike:
        raise OptionsError(
            f"the Delta table has {', '.join(alike)}, and Delta's names do not differ by upper and lower case: rename "
            "the column accordingly in foreachBatch"
        )
    logger.warning("adding column %s to the Delta table", ", ".join(column.name for column in lacking))
    table.alter.add_columns([Field.from_arrow(column.with_nullable(True)) for column in lacking])


def _lacking(table: DeltaTable, columns: pa.Schema) -> list[pa.Field[Any]]:
    present = {column.name for column in table.schema().fields}
    return [column for column in columns if column.name not in present]


def require_partitions(table: DeltaTable, key: Sequence[str], rows: pa.Table) -> None:
    """Refuses values of partition columns by which a row would not be found again."""
    partitioned_by = table.metadata().partition_columns
    require_partition_values(rows.schema, partitioned_by)
    for name in [name for name in partitioned_by if name in rows.column_names]:
        if _is_misspelt(rows[name]):
            raise TableError(
                f"the column {name} partitions the Delta table and is negative, with a fraction, in a row. deltalake "
                f"would write such a decimal so that the table can no longer be read. {_PARTITION_ANEW}"
            )
        if _has(rows[name], _NULLS_FOLDER):
            raise TableError(
                f"the column {name} partitions the Delta table and is {_NULLS_FOLDER!r} in a row, which is the name "
                f"of deltalake's folder for nulls. {_PARTITION_ANEW}"
            )
        if name in key and _has(rows[name], ""):
            raise TableError(
                f"the key column {name} partitions the Delta table and is '' in a row, and Delta keeps that as null. "
                f"{_PARTITION_ANEW}"
            )


def require_apart(key: Sequence[str], given: pa.Schema, fitting: pa.Schema) -> None:
    """Refuses a key whose types in the table may make one key of different ones: a MERGE would insert both if they came
    in one batch, and make one row of them if they came in two.
    """
    for name in key:
        kind, wanted = given.field(name).type, fitting.field(name).type
        # A value that a narrower type would cut is refused by `fitted`; only floats take the nearest one.
        narrower = widens(kind, wanted) and not pa.types.is_floating(wanted)
        if not (narrower or widens(wanted, kind)):
            raise TableError(
                f"the key column {name} of the Delta table is {wanted}, which may make different values of the "
                f"source, whose type is {kind}, equal. Make the table with the source's type, or cast the column in "
                "foreachBatch"
            )


def _has(values: pa.ChunkedArray[Any], text: str) -> bool:
    return is_text(values.type) and bool(pc.any(pc.equal(values.cast(pa.large_string()), pa.scalar(text))).as_py())


def _is_misspelt(values: pa.ChunkedArray[Any]) -> bool:
    """Whether deltalake (1.6) would write one of these values as no number, such as -0.07 as 0.-7."""
    if not pa.types.is_decimal(values.type):
        return False
    wide: Any = values.cast(pa.decimal256(76, values.type.scale))  # A decimal(2,2) has no room for its whole part.
    return bool(pc.any(pc.and_(pc.less(wide, pa.scalar(0)), pc.not_equal(pc.trunc(wide), wide))).as_py())
