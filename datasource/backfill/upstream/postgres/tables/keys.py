"""SQL that compares keys as the index of the key does.

Operators and types are written with their schemas, and the index's collation with each value: the comparison is the
index's own under any `search_path`, whether a column or only literals take part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import pyarrow as pa
from psycopg import sql

from backfill.errors import UnsupportedTypeError
from backfill.upstream.postgres.description import KeyColumn, QualifiedName
from backfill.upstream.postgres.values.oids import Oid
from backfill.upstream.postgres.values.types import MappedColumn, output_text
from backfill.wording import in_option

Comparison: TypeAlias = Literal["<", "<=", "=", ">=", ">"]

_STRATEGIES: Final[tuple[Comparison, ...]] = ("<", "<=", "=", ">=", ">")

# Types whose values Arrow orders as the database does. Not the floats: Arrow has two zeros, and no place for NaN.
_ALIKE: Final = frozenset(
    {
        *(Oid.BOOL, Oid.BYTEA, Oid.INT2, Oid.INT4, Oid.INT8, Oid.OID, Oid.UUID),
        *(Oid.DATE, Oid.TIME, Oid.TIMESTAMP, Oid.TIMESTAMPTZ),
    }
)
# Not bpchar, which compares without its trailing blanks.
_TEXTS: Final = frozenset({Oid.NAME, Oid.TEXT, Oid.VARCHAR})
_ENUM: Final = "e"


def ordered_locally(key: KeyColumn, mapped: MappedColumn) -> bool:
    """Whether Arrow's order and equality of the values of `mapped.arrow` are exactly those of the key's index.

    Refuses types that cannot be a key.
    """
    require_usable(key, mapped)
    described = key.column.type
    if not key.default_order:
        return False
    if described.oid in _TEXTS:
        return key.collation is not None and key.collation.byte_order
    as_text = pa.types.is_string(mapped.arrow)
    if described.oid in _ALIKE:
        # The text of a uuid has one length, lower case and hyphens at fixed places: it sorts as its bytes do.
        return not as_text or described.oid == Oid.UUID
    return described.oid == Oid.NUMERIC and pa.types.is_decimal128(mapped.arrow)


def require_usable(key: KeyColumn, mapped: MappedColumn) -> None:
    """Refuses a key column whose text is no lasting name of its value, or whose Arrow values are lists."""
    name = key.column.type.name
    if name.schema == "pg_catalog" and name.name.startswith("reg"):
        raise UnsupportedTypeError(
            f"the key column {key.column.name!r} is a {name.name}: it sorts by OID, and its text changes when "
            "an object is renamed. Make the column an oid, or choose another key with "
            "ALTER TABLE … REPLICA IDENTITY USING INDEX …"
        )
    if pa.types.is_list(mapped.arrow):
        raise UnsupportedTypeError(
            f"the key column {key.column.name!r} is an array. Read it as text with "
            f'.option("customSchema", "{in_option(key.column.name)} STRING")'
        )


def full_name(key: KeyColumn, table: QualifiedName) -> sql.Identifier:
    """The column with its table's name, so that it stands for nothing else in a statement: a bare name is taken for an
    output column in ORDER BY, and for an inner column in a subselect.
    """
    return sql.Identifier(table.schema, table.name, key.column.name)


def key_text_expression(key: KeyColumn, column: sql.Composable) -> sql.Composable:
    """The lossless text of an expression with the column's values, as it stands in stored positions."""
    return output_text(column, key.column.type.output)


def key_literal(key: KeyColumn, text: str) -> sql.Composable:
    """The value that `text` stands for, to compare with the column or with another literal."""
    return key_value(key, sql.Literal(text))


def key_value(key: KeyColumn, text: sql.Composable) -> sql.Composable:
    """As `key_literal`, for any expression of type text, such as a column of unnested literals.

    The type goes without its modifier, so that nothing is cut, padded or rounded: the text came from the column.
    """
    value = sql.SQL("CAST({} AS {})").format(text, key.column.type.name.identifier())
    return value if key.collation is None else _collated(value, key.collation.name)


def key_column(key: KeyColumn, table: QualifiedName) -> sql.Composable:
    """The column as one side of a comparison; its index serves it."""
    column = full_name(key, table)
    if key.column.type.kind == _ENUM and key.column.type_oid != key.column.type.oid:
        # SQL does not find the operators of enums for a domain.
        return sql.SQL("CAST({} AS {})").format(column, key.column.type.name.identifier())
    return column


def order_by(keys: Sequence[KeyColumn], table: QualifiedName, *, descending: bool = False) -> sql.Composable:
    """The list of an ORDER BY that sorts the rows of a table as its keys compare."""
    return sql.SQL(", ").join(_sorted(key, table, descending=descending) for key in keys)


def _sorted(key: KeyColumn, table: QualifiedName, *, descending: bool) -> sql.Composable:
    column: sql.Composable = full_name(key, table)
    if key.collation is not None and key.collation != key.column.collation:
        column = _collated(column, key.collation.name)
    # Without USING the type's default operator class sorts, whatever the search_path.
    direction: sql.Composable = sql.SQL(" DESC" if descending else "")
    if not key.default_order:
        direction = sql.SQL(" USING {}").format(_operator(key, ">" if descending else "<"))
    # Nulls are last in ascending order, and first in descending order, where nothing is said of them.
    nulls = (" NULLS LAST" if descending else " NULLS FIRST") if key.nulls_first else ""
    return sql.SQL("{}{}{}").format(column, direction, sql.SQL(nulls))


def _collated(value: sql.Composable, collation: QualifiedName) -> sql.Composable:
    return sql.SQL("({} COLLATE {})").format(value, collation.identifier())


def compare(
    keys: Sequence[KeyColumn], left: Sequence[sql.Composable], comparison: Comparison, right: Sequence[sql.Composable]
) -> sql.Composable:
    """`left comparison right` for two keys, or the first columns of two keys, each given column by column.

    The sides are made by `key_column`, `key_literal` or `key_value`, one of them at least by the latter two: they
    carry the collation. The key's index can serve it.
    """
    operators = {key.operators[_STRATEGIES.index(comparison)] for key in keys}
    if len(operators) == 1:
        rows = [sql.SQL("ROW({})").format(sql.SQL(", ").join(side)) for side in (left, right)]
        return sql.SQL("({} {} {})").format(rows[0], next(iter(operators)).operator(), rows[1])
    return _spelled_out(keys, left, comparison, right)


def _spelled_out(
    keys: Sequence[KeyColumn], left: Sequence[sql.Composable], comparison: Comparison, right: Sequence[sql.Composable]
) -> sql.Composable:
    """As `compare`, column by column: a row comparison takes one operator name for all, and here they differ (citext
    beside int8).
    """

    def by(index: int, operator: Comparison) -> sql.Composable:
        return sql.SQL("{} {} {}").format(left[index], _operator(keys[index], operator), right[index])

    if comparison == "=":
        return sql.SQL("({})").format(sql.SQL(" AND ").join(by(index, "=") for index in range(len(keys))))
    strict: Comparison = "<" if comparison in ("<", "<=") else ">"
    bound: Comparison = "<=" if strict == "<" else ">="
    last = len(keys) - 1
    decided = by(last, comparison)
    for index in reversed(range(last)):
        # The bound on the first column says nothing new; it is what lets an index start in the right place.
        decided = sql.SQL("({} AND ({} OR {}))").format(by(index, bound), by(index, strict), decided)
    return sql.SQL("({})").format(decided)


def _operator(key: KeyColumn, comparison: Comparison) -> sql.Composable:
    return key.operators[_STRATEGIES.index(comparison)].operator()
