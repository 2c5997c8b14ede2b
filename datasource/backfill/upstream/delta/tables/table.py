"""What the table is, as the stream reads it: columns, key and identity; and what a table may not be."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable, Schema

from backfill.errors import DatabaseSetupError, OptionsError, SchemaChangedError, TableError, UnsupportedTypeError
from backfill.options import Options
from backfill.upstream import TableSchema
from backfill.upstream.delta.files.log import FEED, is_on
from backfill.upstream.delta.keys.columns import KeyColumn, KeyColumns
from backfill.upstream.delta.tables.types import arrow_type, misread, told
from backfill.upstream.delta.tables.ways_out import GO_ON
from backfill.wording import columns_not_there, in_option, no_column

READABLE_FEATURES: Final = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantShredding-preview",
        "variantType",
        "variantType-preview",
    }
)
"""Of what a reader has to know: what `deltalake` reads rightly. A column of a variant is refused by its type."""

_MAPPING: Final = "delta.columnMapping.mode"

_AS_IT_IS: Final = (
    "Or read the table as it is now: a stream with startupMode=snapshot, spark.read without startingPosition"
)


@dataclass(frozen=True, slots=True)
class Table:
    """The table as it was when the stream opened it."""

    uri: str
    table_id: str
    schema: TableSchema
    key: KeyColumns
    names: tuple[str, ...]
    """Of all its columns, carried or not."""

    @property
    def columns(self) -> pa.Schema:
        return self.schema.columns

    @property
    def order(self) -> str:
        """The key's columns with their types: what positions are made of, and the order that rows are in."""
        return ", ".join(f"{in_option(field.name)} {field.type}" for field in self.key.schema)

    def require_unchanged(
        self, found: Schema, version: int, to_come: Collection[str] = (), *, way_on: str = GO_ON
    ) -> None:
        """Refuses columns of which one that is carried, and is not `to_come`, is gone or of another type."""
        types = {field.name: field.type for field in found.fields}
        problems = []
        for field in self.columns:
            if field.name in to_come:
                continue
            if field.name not in types:
                problems.append(f"column {field.name!r} is missing")
                continue
            with suppress(UnsupportedTypeError):
                if arrow_type(field.name, types[field.name]) == field.type:
                    continue
            problems.append(f"column {field.name!r} has the type {told(types[field.name])}, expected {field.type}")
        if problems:
            raise SchemaChangedError(
                f"version {version} of the Delta table {self.uri} does not have the columns that are read: "
                f"{'; '.join(problems)}. {way_on}; or, if a column was dropped, renamed or added later, leave it out "
                "with the option columns"
            )


def described(table: DeltaTable, options: Options) -> Table:
    """The table with the columns and the key that the options name; refuses what cannot be read or is not there."""
    require_readable(table, options.path)
    fields = {field.name: field for field in table.schema().fields}
    if missing := _unknown(options.key_columns, list(fields), options.path):
        raise OptionsError(f"the option keyColumns: {'; '.join(missing)}")
    if missing := _unknown(options.columns, list(fields), options.path):
        raise columns_not_there(missing, of_spark=options.columns_of_spark)
    output = options.columns or tuple(fields)
    names = tuple(dict.fromkeys([*output, *options.key_columns]))
    columns = pa.schema([pa.field(name, arrow_type(name, fields[name].type)) for name in names])
    require_partition_values(columns, table.metadata().partition_columns)
    key = KeyColumns(tuple(KeyColumn.of(columns.field(name)) for name in options.key_columns))
    return Table(
        uri=options.path,
        table_id=str(table.metadata().id),
        schema=TableSchema(columns=columns, output=output, key=options.key_columns),
        key=key,
        names=tuple(fields),
    )


def require_partition_values(columns: pa.Schema, partitioned_by: Sequence[str]) -> None:
    """Refuses columns that are `misread`."""
    for name in misread(columns, partitioned_by):
        raise UnsupportedTypeError(
            f"column {name!r} is of the type binary and partitions the table, and the values of such columns are not "
            "read rightly; leave it out with the option columns"
        )


def _unknown(names: Sequence[str], present: Sequence[str], uri: str) -> list[str]:
    return [no_column(f"the Delta table {uri}", name, present) for name in names if name not in present]


def require_readable(table: DeltaTable, uri: str) -> None:
    """Refuses what `deltalake` would not read, or not rightly."""
    unknown = sorted(set(table.protocol().reader_features or ()) - READABLE_FEATURES)
    if unknown:
        raise TableError(
            f"the Delta table {uri} has the feature {', '.join(unknown)}, which cannot be read here; take it away with "
            f"ALTER TABLE delta.`{uri}` DROP FEATURE {unknown[0]}, or stream a copy of the table without it"
        )
    require_names(table, uri)


def require_names(table: DeltaTable, uri: str) -> None:
    """Refuses columns that need not have the same name in all files."""
    if _mapping(table.metadata().configuration) == "id":
        raise TableError(
            f"the columns of the Delta table {uri} are told apart in its files by numbers ({_MAPPING} = id), and "
            "deltalake knows them by their names alone: what has another name in a file, as Iceberg's writers give it, "
            "would be null. Use a copy of the table that is written without column mapping"
        )


def require_followable(table: DeltaTable, uri: str) -> None:
    """Refuses a table whose changes cannot be read."""
    if not has_feed(table):
        raise DatabaseSetupError(
            f"the change data feed of the Delta table {uri} is off, and without it changes cannot be followed; run "
            f"{enable_feed(uri)}. What was written before that comes with the snapshot. {_AS_IT_IS}"
        )
    require_unmapped(table.metadata().configuration, uri)


def require_unmapped(properties: Mapping[str, Any], uri: str) -> None:
    """Refuses columns whose names in the files are not those of the table."""
    mode = _mapping(properties)
    if mode != "none":
        raise TableError(
            f"the columns of the Delta table {uri} have other names in its files ({_MAPPING} = {mode}), "
            "and the changes of such a table cannot be read; follow a copy that is written without column mapping. "
            f"{_AS_IT_IS}"
        )


def _mapping(properties: Mapping[str, Any]) -> str:
    return str(properties.get(_MAPPING) or "none").lower()


def has_feed(table: DeltaTable) -> bool:
    return is_on(table.metadata().configuration)


def enable_feed(uri: str) -> str:
    return f"ALTER TABLE delta.`{uri}` SET TBLPROPERTIES ({FEED} = true)"
