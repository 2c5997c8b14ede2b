"""What the table is, as the stream reads it: columns, key and identity."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable, Schema

from backfill.errors import OptionsError, SchemaChangedError, UnsupportedTypeError
from backfill.options import Options
from backfill.upstream import TableSchema
from backfill.upstream.delta.keys.columns import KeyColumn, KeyColumns
from backfill.upstream.delta.position import Position
from backfill.upstream.delta.tables.properties import require_readable
from backfill.upstream.delta.tables.types import arrow_type, misread, type_name
from backfill.upstream.delta.tables.ways_out import GO_ON
from backfill.wording import columns_not_there, in_option, no_column

_IN_ORDER: Final = re.compile(r'(?:^|, )(\w+|"(?:[^"]|"")+") ')
"""A column in `Table.order`. A type may have a comma in it, but no word with a blank after that."""


def key_columns(order: str) -> set[str]:
    """The names of the columns in a `Table.order`, as options want them."""
    return set(_IN_ORDER.findall(order))


@dataclass(frozen=True, slots=True)
class Table:
    """The table as it was when the stream opened it."""

    uri: str
    table_id: str
    schema: TableSchema
    key: KeyColumns
    names: tuple[str, ...]
    """The names of all columns, carried or not."""

    @property
    def columns(self) -> pa.Schema:
        return self.schema.columns

    def position(self, version: int) -> Position:
        return Position(version, self.table_id)

    @property
    def order(self) -> str:
        """The key's columns with their types: what positions are made of, and the order that rows are in."""
        return ", ".join(f"{in_option(field.name)} {field.type}" for field in self.key.schema)

    def require_unchanged(
        self, found: Schema, version: int, to_come: Collection[str] = (), *, way_on: str = GO_ON
    ) -> None:
        """Refuses the columns of a version if one that is carried, and not `to_come`, is gone or of another type."""
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
            problems.append(f"column {field.name!r} has the type {type_name(types[field.name])}, expected {field.type}")
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
        schema=TableSchema(name=options.path, columns=columns, output=output, key=options.key_columns),
        key=key,
        names=tuple(fields),
    )


def require_as_described(found: DeltaTable, table: Table) -> None:
    """Refuses a version that can no longer be read, or not as the table was when it was described."""
    require_readable(found, table.uri)
    table.require_unchanged(found.schema(), found.version())
    require_partition_values(table.columns, found.metadata().partition_columns)


def require_partition_values(columns: pa.Schema, partitioned_by: Sequence[str]) -> None:
    """Refuses columns that are `misread`."""
    for name in misread(columns, partitioned_by):
        raise UnsupportedTypeError(
            f"column {name!r} has the type binary and partitions the table, and deltalake misreads such values; leave "
            "it out with the option columns"
        )


def _unknown(names: Sequence[str], present: Sequence[str], uri: str) -> list[str]:
    return [no_column(f"the Delta table {uri}", name, present) for name in names if name not in present]
