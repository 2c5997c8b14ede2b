"""Whether columns are still those that had their names when the table was described.

A statement names columns by their present names, also when it reads an earlier state: once two columns have exchanged
their names, which rewrites nothing, a chunk that was planned before would be read from the wrong one. In such a session
the catalog's tables show the earlier names too, so the catalog's functions are asked, which know the present ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from psycopg import sql

from backfill.errors import SchemaChangedError
from backfill.upstream.postgres.description import QualifiedName

Numbered: TypeAlias = tuple[tuple[str, int], ...]
"""Columns, each with its number, which it keeps for as long as it is there."""


def names_of(table: QualifiedName, columns: Numbered) -> sql.Composed:
    """An expression for the names that the columns of these numbers have now, as an array."""
    return sql.SQL(
        "ARRAY(SELECT (pg_catalog.pg_identify_object_as_address("
        "'pg_catalog.pg_class'::pg_catalog.regclass, pg_catalog.to_regclass({}), number)).object_names[3] "
        "FROM pg_catalog.unnest({}::int[]) WITH ORDINALITY AS asked(number, place) ORDER BY place)"
    ).format(sql.Literal(table.quoted()), sql.Literal([number for _, number in columns]))


def require_names(table: QualifiedName, columns: Numbered, now: Sequence[str | None]) -> None:
    """Raises SchemaChangedError where the columns have other names now."""
    others = [name for (name, _), found in zip(columns, now, strict=True) if name != found]
    if others:
        raise another_column(table, others)


def another_column(table: QualifiedName, names: Iterable[str]) -> SchemaChangedError:
    return SchemaChangedError(
        f"column {', '.join(names)} of {table.quoted()} is not the one any more that it was when the query began: it "
        "was dropped, or dropped and added again, or renamed, so that another one may have its name. The change log "
        "does not tell what that did to the rows. Where a column of the key is among them, start over with a fresh "
        "checkpointLocation, onExistingState=restart and an empty sink; else start the query again, and have the rows "
        "read again with backfill re-backfill. A batch is loaded anew, and a stream with startupMode=snapshot only "
        "started again"
    )
