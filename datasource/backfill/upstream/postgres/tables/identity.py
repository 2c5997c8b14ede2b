"""The key of the stream: the columns by which the change log says which row was updated or deleted.

Which columns that are is the table's replica identity (PostgreSQL manual, ALTER TABLE, REPLICA IDENTITY):

| identity | an update that changes the key, and each delete, log | the key of the stream         |
|----------|------------------------------------------------------|-------------------------------|
| default  | the old values of the primary key                    | the primary key               |
| full     | all old values                                       | the primary key               |
| index    | the old values of that unique index                  | that index, even beside a primary key |
| nothing  | nothing; updates and deletes fail or are lost        | refused                       |

A deferrable key is no replica identity, and its values may occur twice in the middle of a transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from psycopg.rows import class_row

from backfill.errors import TableError
from backfill.upstream.postgres.description import (
    CollationDescription,
    ColumnDescription,
    KeyColumn,
    QualifiedName,
    quoted,
)
from backfill.upstream.postgres.session.connection import Session
from backfill.upstream.postgres.tables.dbtable import RelationRow
from backfill.upstream.postgres.tables.partitions import with_partitions

_INDEXES: Final = """
    SELECT c.relname AS name, m.amname AS method, i.indisprimary AS primary, i.indisreplident AS chosen,
           i.indimmediate AS immediate, i.indisvalid AS valid,
           i.indpred IS NOT NULL AS partial,
           ARRAY(SELECT i.indkey[k]::int FROM pg_catalog.generate_series(0, i.indnkeyatts - 1) k ORDER BY k) AS attnums,
           ARRAY(SELECT i.indclass[k]::int8 FROM pg_catalog.generate_series(0, i.indnkeyatts - 1) k ORDER BY k)
               AS classes,
           ARRAY(SELECT i.indcollation[k]::int8 FROM pg_catalog.generate_series(0, i.indnkeyatts - 1) k ORDER BY k)
               AS collations,
           ARRAY(SELECT i.indoption[k]::int FROM pg_catalog.generate_series(0, i.indnkeyatts - 1) k ORDER BY k)
               AS options
    FROM pg_catalog.pg_index i
    JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
    JOIN pg_catalog.pg_am m ON m.oid = c.relam
    WHERE i.indrelid = %s AND i.indisunique AND i.indislive
    ORDER BY c.relname
"""

_OPERATORS: Final = """
    SELECT o.oid::int8, o.opcdefault, n.nspname, p.oprname
    FROM pg_catalog.pg_opclass o
    JOIN pg_catalog.pg_amop a ON a.amopfamily = o.opcfamily AND a.amoplefttype = o.opcintype
                             AND a.amoprighttype = o.opcintype AND a.amoppurpose = 's'
    JOIN pg_catalog.pg_operator p ON p.oid = a.amopopr
    JOIN pg_catalog.pg_namespace n ON n.oid = p.oprnamespace
    WHERE o.oid = ANY (%s::oid[])
    ORDER BY o.oid, a.amopstrategy
"""

# PostgreSQL 18 accepts a NOT NULL constraint that is NOT VALID, also for a replica identity, and of a partition even
# for a primary key. Before, pg_constraint has none of this kind.
_NOT_VALIDATED: Final = f"""
    {with_partitions("%s")}
    SELECT a.attname, n.nspname, c.relname, o.conname
    FROM partitions
    JOIN pg_catalog.pg_constraint o ON o.conrelid = relid AND o.contype = 'n' AND NOT o.convalidated
    JOIN pg_catalog.pg_attribute a ON a.attrelid = relid AND a.attnum = o.conkey[1] AND a.attname = ANY (%s)
    JOIN pg_catalog.pg_class c ON c.oid = relid
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    ORDER BY n.nspname, c.relname, o.conname
    LIMIT 1
"""

# INDOPTION_NULLS_FIRST without INDOPTION_DESC, or the reverse: the index is then read backwards.
_NULLS_FIRST: Final = (2, 1)


@dataclass(frozen=True, slots=True)
class Index:
    """A unique index of the table; `attnums`, `classes`, `collations` and `options` have one entry per key column."""

    name: str
    method: str
    primary: bool
    chosen: bool
    immediate: bool
    valid: bool
    partial: bool
    attnums: list[int]
    classes: list[int]
    collations: list[int]
    options: list[int]

    @property
    def sound(self) -> bool:
        return self.method == "btree" and self.immediate and self.valid and not self.partial and 0 not in self.attnums


def read_indexes(session: Session, table_oid: int) -> list[Index]:
    """The table's unique indexes, by name."""
    with session.cursor(row_factory=class_row(Index)) as cursor:
        return cursor.execute(_INDEXES, [table_oid]).fetchall()


def choose_index(
    table: RelationRow, columns: Sequence[ColumnDescription], indexes: Sequence[Index], *, follows: bool
) -> Index:
    """The index whose columns are the key; TableError with the ways out where there is none."""
    name, mend = table.qualified.quoted(), _mend(table, columns, indexes)
    unsaid = "so updates and deletes do not say which row they concern"
    if table.replica_identity == "n" and follows:
        raise TableError(f"{name} has REPLICA IDENTITY NOTHING, {unsaid}. Run {mend}")
    chosen = next((index for index in indexes if index.chosen), None)
    if table.replica_identity == "i" and (chosen or follows):
        found = chosen
        lacks = f"the index that was the replica identity of {name} has been dropped, {unsaid}"
    else:
        found = next((index for index in indexes if index.primary), None)
        lacks = f"{name} has no primary key, so changes cannot be matched to rows"
    if found is None:
        raise TableError(f"{lacks}. Run {mend}")
    if not found.immediate:
        raise TableError(
            f"the primary key of {name} is deferrable: it does not identify rows in the change log, and one key may "
            f"occur twice inside a transaction. Run {mend}"
        )
    if not found.sound:
        raise TableError(
            f"the key {QualifiedName(table.schema, found.name).quoted()} of {name} cannot be used "
            f"(access method {found.method}{'' if found.valid else ', not valid'}); a valid btree index is needed. "
            f"Run {mend}"
        )
    generated = next((column for column in columns if column.attnum in found.attnums and not column.logged), None)
    if generated is not None and follows:
        raise TableError(
            f"the key column {generated.name!r} is generated, and this server's change log does not carry generated "
            "columns. PostgreSQL 18 can; or make a key of other columns the replica identity"
        )
    return found


def require_never_null(session: Session, table: RelationRow, key: Sequence[str]) -> None:
    """Refuses a table whose rows may have no value in one of these columns, although the column is NOT NULL now."""
    found = session.execute(_NOT_VALIDATED, [table.oid, list(key)]).fetchone()
    if found is not None:
        column, schema, name, constraint = found
        partition = QualifiedName(schema, name).quoted()
        raise TableError(
            f"the key column {column!r} of {table.qualified.quoted()} is NOT NULL, but older rows of {partition} may "
            "have nulls in it, because the constraint is NOT VALID, and such rows cannot be followed. Give them a "
            f"key or delete them, and run ALTER TABLE {partition} VALIDATE CONSTRAINT {quoted(constraint)}"
        )


def _mend(table: RelationRow, columns: Sequence[ColumnDescription], indexes: Sequence[Index]) -> str:
    """The statements that give the table a key, the easiest first."""
    alter = f"ALTER TABLE {table.qualified.quoted()}"
    if any(index.primary and index.sound for index in indexes):
        return f"{alter} REPLICA IDENTITY DEFAULT"
    not_null = {column.attnum for column in columns if column.not_null}
    fit = [index.name for index in indexes if index.sound and not_null.issuperset(index.attnums)]
    using = " or ".join(f"{alter} REPLICA IDENTITY USING INDEX {quoted(name)}" for name in fit)
    key = _primary_key(columns, indexes)
    index = "" if fit else f"CREATE UNIQUE INDEX … over NOT NULL columns, and {alter} REPLICA IDENTITY USING INDEX …"
    return "; or ".join(filter(None, (using, key and f"{alter} {key}", index)))


def _primary_key(columns: Sequence[ColumnDescription], indexes: Sequence[Index]) -> str:
    """What ALTER TABLE takes to give the table a usable primary key; empty where it cannot. A table has no second one,
    and none can be altered; only one that is deferrable and nothing worse can be made anew without a loss.
    """
    there = next((index for index in indexes if index.primary), None)
    if there is None:
        return "ADD PRIMARY KEY (…)"
    if there.immediate:
        return ""
    names = {column.attnum: quoted(column.name) for column in columns}
    of = ", ".join(names[attnum] for attnum in there.attnums)
    return f"DROP CONSTRAINT {quoted(there.name)}, ADD PRIMARY KEY ({of})"


def read_key(
    session: Session,
    index: Index,
    columns: Sequence[ColumnDescription],
    collations: Mapping[int, CollationDescription],
) -> tuple[KeyColumn, ...]:
    """The columns of the index as it orders them."""
    rows = session.execute(_OPERATORS, [list(index.classes)]).fetchall()
    by_attnum = {column.attnum: column for column in columns}
    key = []
    for attnum, of_class, collation, option in zip(
        index.attnums, index.classes, index.collations, index.options, strict=True
    ):
        less, at_most, equal, at_least, greater = (QualifiedName(row[2], row[3]) for row in rows if row[0] == of_class)
        key.append(
            KeyColumn(
                column=by_attnum[attnum],
                collation=collations.get(collation),
                operators=(less, at_most, equal, at_least, greater),
                default_order=any(row[1] for row in rows if row[0] == of_class),
                nulls_first=option in _NULLS_FIRST,
            )
        )
    return tuple(key)
