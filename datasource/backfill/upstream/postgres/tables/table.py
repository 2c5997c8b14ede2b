"""The table: what is read of the catalog once, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from backfill.options import Options
from backfill.upstream import TableSchema
from backfill.upstream.postgres.decoder.relation import WantedColumn
from backfill.upstream.postgres.description import (
    ColumnDescription,
    QualifiedName,
    ServerDescription,
    TableDescription,
    quoted,
)
from backfill.upstream.postgres.session.connection import Session
from backfill.upstream.postgres.session.server import read_server
from backfill.upstream.postgres.tables.catalog import read_table
from backfill.upstream.postgres.tables.columns import room
from backfill.upstream.postgres.tables.condition import columns_named, require_condition, require_row_condition
from backfill.upstream.postgres.tables.keys import ordered_locally
from backfill.upstream.postgres.tables.money import require_same_decimals
from backfill.upstream.postgres.tables.ranges import KeyedTable
from backfill.upstream.postgres.tables.selection import select_columns
from backfill.upstream.postgres.values.conversion import decode_text, from_change
from backfill.upstream.postgres.values.types import MappedColumn, map_columns
from backfill.vnode import Key


@dataclass(frozen=True, slots=True)
class Table:
    """What is read of the catalog once, and what follows from it."""

    server: ServerDescription
    description: TableDescription
    columns: tuple[MappedColumn, ...]
    """The selected columns, then the key columns that were not selected."""

    filtering: tuple[ColumnDescription, ...]
    """The columns that decide which rows are read, and perhaps some more."""

    output: tuple[str, ...]
    ordered_locally: bool
    """Whether Arrow compares keys exactly as the key's index does."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def carried(self) -> list[ColumnDescription]:
        """The columns that are read, as the catalog has them."""
        names = {column.name for column in self.columns}
        return [column for column in self.description.columns if column.name in names]

    @property
    def read(self) -> tuple[ColumnDescription, ...]:
        """The columns that reading rows depends on: those that are carried, and those of conditions."""
        return tuple(dict.fromkeys([*self.carried, *self.filtering]))

    @property
    def filter_columns(self) -> str:
        """The numbers of the columns in `filtering`, as text."""
        return ", ".join(str(column.attnum) for column in self.filtering)

    @property
    def keyed(self) -> KeyedTable:
        described = self.description
        return KeyedTable(described.name, described.partitioned, described.key, self.read)

    @property
    def schema(self) -> TableSchema:
        return TableSchema(
            name=self.description.name.quoted(),
            columns=pa.schema([pa.field(column.name, column.arrow) for column in self.columns]),
            output=self.output,
            key=tuple(self.description.key_names),
        )

    @property
    def key(self) -> tuple[MappedColumn, ...]:
        by_name = {column.name: column for column in self.columns}
        return tuple(by_name[item.column.name] for item in self.description.key)

    @property
    def collations(self) -> str:
        """The collations of the key's columns, as text."""
        columns = [item.column for item in self.description.key]
        return listed_collations(
            (column.name, column.collation.name if column.collation else None) for column in columns
        )

    @property
    def order(self) -> str:
        """How the key's index sorts, where that is not as its columns' types and collations do by default."""
        odd = [
            item for item in self.description.key if not item.default_order or item.collation != item.column.collation
        ]
        return ", ".join(
            f"{quoted(item.column.name)} {item.operators[0].quoted()} "
            f"{item.collation.name.quoted() if item.collation else ''}".strip()
            for item in odd
        )

    @property
    def key_types(self) -> str:
        """The numbers of the key's columns, each with its type's OID: what positions are made of."""
        columns = [item.column for item in self.description.key]
        return ", ".join(f"{column.attnum} {column.type.oid}" for column in columns)

    @property
    def value_columns(self) -> str:
        """The numbers of the columns that are carried beside the key, in their order."""
        key = set(self.key)
        return ", ".join(str(column.attnum) for column in self.columns if column not in key)

    @property
    def types(self) -> str:
        """How the carried columns are defined, by their numbers: the type with its `room`, and for a generated one a
        digest of its expression.
        """
        return ", ".join(
            f"{item.attnum} {item.type_oid} {room(item.type_oid, item.typmod)} {item.expression or ''}".strip()
            for item in self.carried
        )

    @property
    def wanted(self) -> tuple[WantedColumn, ...]:
        """The columns as the change log's decoder needs them."""
        key = set(self.key)
        return tuple(
            WantedColumn(column.name, column.attnum, column.type_oid, column in key, partial(from_change, column))
            for column in self.columns
        )

    def typed(self, keys: Sequence[Key]) -> pa.RecordBatch:
        """Keys given as text, as columns of their Arrow types."""
        columns = [
            decode_text(column, pa.array([key[at] for key in keys], pa.string())) for at, column in enumerate(self.key)
        ]
        return pa.RecordBatch.from_arrays(columns, names=[column.name for column in self.key])


def listed_collations(of_columns: Iterable[tuple[str, QualifiedName | None]]) -> str:
    """The columns that have a collation, each with its collation, as text."""
    return ", ".join(f"{quoted(name)} {of.quoted()}" for name, of in of_columns if of)


def describe(session: Session, options: Options) -> Table:
    """The table that the options name, in one state of the catalog; refuses what cannot be carried, by name."""
    with session.transaction():
        session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        server = read_server(session)
        description = read_table(session, options.dbtable, follows=options.follows)
    selected = select_columns(description, options.columns, of_spark=options.columns_of_spark, follows=options.follows)
    columns = map_columns(selected, dict(options.custom_schema))
    require_same_decimals(session, description, [column.name for column in columns])
    by_name = {column.name: column for column in columns}
    local = [ordered_locally(item, by_name[item.column.name]) for item in description.key]
    output = options.columns or tuple(column.name for column in description.columns)
    filtering = columns_named(f"{options.filter} {options.stream.snapshot_filter}", description.columns)
    table = Table(server, description, columns, filtering, output, all(local))
    if options.filter:
        require_condition(session, table.keyed, "filter", options.filter)
    if options.stream.snapshot_filter:
        require_row_condition(session, table.keyed, "snapshotFilter", options.stream.snapshot_filter)
    return table
