"""Whether columns are still those that had their names when the table was described, and are defined as they were.

A statement names columns by their present names, also when it reads an earlier state: once two columns have exchanged
their names, which rewrites nothing, a chunk that was planned before would be read from the wrong one. In such a session
the catalog's tables show the earlier names too, so the catalog's functions are asked, which know the present ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from psycopg import sql

from backfill.errors import SchemaChangedError
from backfill.upstream.postgres.decoder.relation import WIDENED
from backfill.upstream.postgres.description import EXPRESSION, ColumnDescription, QualifiedName
from backfill.upstream.postgres.values.oids import Oid
from backfill.wording import FRESH_START

_UNLIMITED: Final = (1 << 31) - 1

Columns: TypeAlias = Sequence[ColumnDescription]
Definitions: TypeAlias = Mapping[str, Sequence[Any]]
"""What DEFINITIONS gives: by the column's name, its number, type's OID, type modifier and digest of its expression."""

DEFINITIONS: Final = sql.SQL(
    "coalesce((SELECT pg_catalog.jsonb_object_agg(attname, pg_catalog.jsonb_build_array("
    "attnum, atttypid::int8, atttypmod, "
    + EXPRESSION
    + ")) FROM pg_catalog.pg_attribute a WHERE attrelid = {} AND attnum > 0 AND NOT attisdropped), '{{}}')"
)
"""An expression for how the columns of the table with this OID are defined now."""


def names_of(table: QualifiedName, columns: Columns) -> sql.Composed:
    """An expression for the names that the columns of these numbers have now, as an array."""
    return sql.SQL(
        "ARRAY(SELECT (pg_catalog.pg_identify_object_as_address("
        "'pg_catalog.pg_class'::pg_catalog.regclass, pg_catalog.to_regclass({}), number)).object_names[3] "
        "FROM pg_catalog.unnest({}::int[]) WITH ORDINALITY AS asked(number, place) ORDER BY place)"
    ).format(sql.Literal(table.quoted()), sql.Literal([column.attnum for column in columns]))


def require_names(table: QualifiedName, columns: Columns, now: Sequence[str | None]) -> None:
    """Raises SchemaChangedError where the columns have other names now."""
    others = [column.name for column, found in zip(columns, now, strict=True) if column.name != found]
    if others:
        raise _another_column(table, others)


def require_there(table: QualifiedName, columns: Columns, now: Definitions) -> None:
    """Raises SchemaChangedError where a column is gone, or another one has its name."""
    gone = [column.name for column in columns if column.name not in now]
    if gone:
        raise lost(table, gone)
    others = [column.name for column in columns if now[column.name][0] != column.attnum]
    if others:
        raise _another_column(table, others)


def require_as_described(table: QualifiedName, columns: Columns, now: Definitions, *, all_read: bool = True) -> None:
    """Raises as `require_there`, and where a column was redefined so that its values may be others.

    Unless `all_read`, it may have another type altogether, of which the change log tells with the next row. But not a
    narrower one: the log may have rows of that type from before this process began.
    """
    require_there(table, columns, now)
    others = [column for column in columns if now[column.name][1] != column.type_oid]
    retyped = [item.name for item in others if all_read or (now[item.name][1], item.type_oid) in WIDENED]
    if retyped:
        raise lost(table, retyped)
    rewritten = [column.name for column in columns if _may_be_rewritten(column, *now[column.name][1:])]
    if rewritten:
        raise SchemaChangedError(
            f"column {', '.join(rewritten)} of {table.quoted()} got another precision, scale, length or expression. "
            "That may have changed the values of all rows, which the change log does not show. Start the query "
            "again, and read the rows again with backfill re-backfill; or, if a key column is among them, start over "
            f"with {FRESH_START}: rows may stay under their old keys"
        )


def is_of_its_type(column: ColumnDescription, type_oid: int, typmod: int) -> bool:
    """Whether the column has the type that it had, or is a varchar that got longer."""
    same_type = type_oid == column.type_oid
    return same_type and keeps_values(type_oid, room(type_oid, column.typmod), room(type_oid, typmod))


def room(type_oid: int, typmod: int) -> int:
    """The type's modifier, except that a varchar without one has more room than any other."""
    return _UNLIMITED if type_oid == Oid.VARCHAR and typmod == -1 else typmod


def keeps_values(type_oid: int, before: int, now: int) -> bool:
    """Whether the values of a type stay the same where its `room` goes from `before` to `now`; a varchar that gets
    shorter loses blanks at its end.
    """
    return before <= now if type_oid == Oid.VARCHAR else before == now


def _may_be_rewritten(column: ColumnDescription, type_oid: int, typmod: int, expression: str | None) -> bool:
    """Whether the column's values may have changed; those of one that is not generated any more stay as they are."""
    narrower = type_oid == column.type_oid and not is_of_its_type(column, type_oid, typmod)
    return narrower or expression not in (None, column.expression)


def lost(table: QualifiedName, columns: Iterable[str]) -> SchemaChangedError:
    return SchemaChangedError(
        f"column {', '.join(columns)} of {table.quoted()} was dropped, renamed or given another type since the query "
        "began. Start the query again, without missing columns in the option columns: it goes on with the current "
        "columns, and backfill re-backfill reads the earlier rows again. If that is refused, start over with "
        f"{FRESH_START}"
    )


def _another_column(table: QualifiedName, names: Iterable[str]) -> SchemaChangedError:
    return SchemaChangedError(
        f"column {', '.join(names)} of {table.quoted()} is no longer the column that it was when the query began: it "
        "was dropped, or dropped and added again, or renamed, and another column may have its name. The change log "
        "does not show what that did to the rows. If a key column is among them, start over with a fresh "
        "checkpointLocation, onExistingState=restart and an empty sink; else start the query again, and read the "
        "rows again with backfill re-backfill. For spark.read, load() again; a stream with startupMode=snapshot only "
        "has to be started again"
    )
