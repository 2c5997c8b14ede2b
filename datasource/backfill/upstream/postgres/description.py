"""What the catalog says of a table, as far as the stream depends on it: plain values, no connection.

Type, collation and operator names come with their schema, so that SQL made from them means the same under any
`search_path`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from psycopg import sql

STORED_ARE_PUBLISHED: Final = 180000
"""From this version on a publication may have stored generated columns."""


EXPRESSION: Final = """(SELECT pg_catalog.md5(d.adbin::text) FROM pg_catalog.pg_attrdef d
    WHERE d.adrelid = a.attrelid AND d.adnum = a.attnum AND a.attgenerated <> '')"""
"""A digest of the expression of a generated column, the row `a` of pg_attribute; null for any other."""


def quoted(name: str) -> str:
    """A name as one writes it in SQL."""
    return sql.Identifier(name).as_string(None)


@dataclass(frozen=True, slots=True)
class QualifiedName:
    """The name of a type, function, operator, collation or table within its schema."""

    schema: str
    name: str

    def quoted(self) -> str:
        """The name with its schema, as one writes it in SQL."""
        return self.identifier().as_string(None)

    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)

    def own_rows(self, *, partitioned: bool) -> sql.Composed:
        """How a statement names the table to get its own rows, and not those of tables that inherit from it, whose
        changes are logged under other names. A partitioned table has no rows but those of its partitions.
        """
        return sql.SQL("{}{}").format(sql.SQL("" if partitioned else "ONLY "), self.identifier())

    def operator(self) -> sql.Composable:
        """The name as that of an operator: the schema is quoted, the symbol stands as it is."""
        if set(self.name) - set("+-*/<>=~!@#%^&|`?"):
            raise ValueError(f"{self.name!r} is not the name of an operator")
        # An operator's name cannot be quoted; the check above leaves nothing but operator characters.
        return sql.SQL("OPERATOR({}.{})").format(sql.Identifier(self.schema), sql.SQL(self.name))


@dataclass(frozen=True, slots=True)
class TypeDescription:
    """A type as it is stored: domains are replaced by their base types, down to the element of an array.

    `kind` is pg_type.typtype. `typmod` is -1 where the type has no modifier. `output` is the type's output function,
    None where SQL cannot call it with a value of this type, or the role might not be allowed to. `element` is set for
    arrays proper, whose text is an array literal; not for int2vector and oidvector. `delimiter` is what separates
    values of this type in such a literal.
    """

    oid: int
    name: QualifiedName
    kind: str
    typmod: int
    output: QualifiedName | None
    delimiter: str
    element: TypeDescription | None


@dataclass(frozen=True, slots=True)
class CollationDescription:
    """A collation. `byte_order`: text sorts as its UTF-8 bytes do, and equal means equal bytes."""

    name: QualifiedName
    byte_order: bool


class Generated(enum.Enum):
    """Whether the database computes the column, and where it keeps the result (pg_attribute.attgenerated)."""

    NO = ""
    STORED = "s"
    VIRTUAL = "v"


@dataclass(frozen=True, slots=True)
class ColumnDescription:
    """A column. `type_oid` and `typmod` are declared, and repeated in pgoutput's Relation message; `type` is resolved.

    `logged`: pgoutput can carry its values. Up to PostgreSQL 17 it never carries those of generated columns; from 18 on
    it carries those of stored ones, if the publication is made with `publish_generated_columns = stored` or lists them.
    `readable`: the role may SELECT this column. `expression` is what EXPRESSION gives.
    """

    name: str
    attnum: int
    type_oid: int
    typmod: int
    declared: str
    type: TypeDescription
    collation: CollationDescription | None
    not_null: bool
    generated: Generated
    logged: bool
    readable: bool
    expression: str | None = None


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column of the key as the key's index orders it.

    `operators` are those of the index's operator class, in the order of the btree strategies: < <= = >= >.
    `default_order`: the operator class is the type's own default. `collation` is the index's, which wins over the
    column's. Keys compare ascending, however the index is stored. `nulls_first`: read in ascending order, it has nulls
    before values; a key has none, but the planner takes the index only for an ORDER BY that says the same.
    """

    column: ColumnDescription
    collation: CollationDescription | None
    operators: tuple[QualifiedName, QualifiedName, QualifiedName, QualifiedName, QualifiedName]
    default_order: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class TableDescription:
    """A table that can be streamed: its changes are logged with the values of `key`.

    `role` is who asked, and whose rights were looked at. `columns` are in attnum order. `key` is in index order, and
    its values are unique at any moment, not only at commit.
    """

    oid: int
    name: QualifiedName
    role: str
    partitioned: bool
    replica_identity: str
    columns: tuple[ColumnDescription, ...]
    key: tuple[KeyColumn, ...]
    partitions: tuple[int, ...] = ()
    """The OIDs of its partitions, at all levels, and its own; empty where it has none or is not followed."""

    listed_in: str = ""
    """The state of the catalog in which `partitions` were listed, as pg_current_snapshot tells; empty without any."""

    @property
    def key_names(self) -> list[str]:
        return [part.column.name for part in self.key]

    def column(self, name: str) -> ColumnDescription | None:
        return next((column for column in self.columns if column.name == name), None)


@dataclass(frozen=True, slots=True)
class ServerDescription:
    """A server. `system_identifier` names the cluster across its standbys."""

    system_identifier: int
    timeline: int
    wal_level: str
    raises_wal_level: bool
    """Whether a logical slot makes it log what decoding needs although `wal_level` is `replica`: from version 19 on."""

    in_recovery: bool
    log_too_long: bool
    """Whether an LSN may not fit into a bigint."""

    old_snapshots: str
    """`old_snapshot_threshold`; -1 as well where there is no such setting, from version 17 on."""
