"""Descriptions of columns, as the catalog would give them."""

from __future__ import annotations

from backfill.upstream.postgres.description import (
    CollationDescription,
    ColumnDescription,
    Generated,
    KeyColumn,
    QualifiedName,
    TypeDescription,
)

C = CollationDescription(QualifiedName("pg_catalog", "C"), byte_order=True)
ENGLISH = CollationDescription(QualifiedName("pg_catalog", "en_US"), byte_order=False)


def system(name: str) -> QualifiedName:
    return QualifiedName("pg_catalog", name)


def stored(
    oid: int,
    name: str,
    *,
    typmod: int = -1,
    kind: str = "b",
    delimiter: str = ",",
    element: TypeDescription | None = None,
) -> TypeDescription:
    return TypeDescription(oid, system(name), kind, typmod, system(f"{name}_out"), delimiter, element)


def array_of(element: TypeDescription, oid: int = 1) -> TypeDescription:
    return stored(oid, f"_{element.name.name}", element=element)


def numeric(precision: int, scale: int) -> TypeDescription:
    """Describes a numeric, with its modifier packed as by numerictypmodin; a negative scale came with version 15."""
    return stored(1700, "numeric", typmod=(precision << 16 | scale & 0x7FF) + 4)


def column(
    of: TypeDescription,
    name: str = "c",
    *,
    collation: CollationDescription | None = None,
    generated: Generated = Generated.NO,
    logged: bool = True,
    readable: bool = True,
) -> ColumnDescription:
    return ColumnDescription(
        name=name,
        attnum=1,
        type_oid=of.oid,
        typmod=of.typmod,
        declared=of.name.name,
        type=of,
        collation=collation,
        not_null=True,
        generated=generated,
        logged=logged,
        readable=readable,
    )


def key(
    of: TypeDescription,
    name: str = "c",
    *,
    collation: CollationDescription | None = None,
    own: CollationDescription | None = None,
    schema: str = "pg_catalog",
    default_order: bool = True,
) -> KeyColumn:
    """Describes a key column; `own` is the column's collation where it is not the index's."""
    less, at_most, equal, at_least, greater = (QualifiedName(schema, symbol) for symbol in ("<", "<=", "=", ">=", ">"))
    return KeyColumn(
        column=column(of, name, collation=own or collation),
        collation=collation,
        operators=(less, at_most, equal, at_least, greater),
        default_order=default_order,
        nulls_first=False,
    )
