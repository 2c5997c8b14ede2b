"""The table that batches are applied to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from psycopg import sql

from backfill.errors import TableError
from backfill.upstream.postgres.arrow_session import ArrowSession

RECORD: Final = "backfill_batches"

# pg_class.relkind
_PARTITIONED: Final = "p"
_TABLES: Final = ("r", _PARTITIONED)

_TARGET: Final = """
    SELECT n.nspname::text, c.relname::text, c.relkind::text,
           EXISTS (SELECT FROM pg_catalog.pg_class r JOIN pg_catalog.pg_attribute a ON a.attrelid = r.oid
                   WHERE r.relnamespace = n.oid AND r.relname = {record} AND a.attname = 'commit_timestamp'),
           EXISTS (
               SELECT FROM pg_catalog.pg_index i
               WHERE i.indrelid = c.oid AND i.indisunique AND i.indimmediate AND i.indpred IS NULL
                 AND ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a
                           WHERE a.attrelid = c.oid AND a.attnum = ANY (i.indkey[:i.indnkeyatts - 1]) ORDER BY 1)
                     = ARRAY(SELECT pg_catalog.unnest({key}::text[]) ORDER BY 1))
    FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = pg_catalog.to_regclass({table})
"""

# A type's name without its modifier, so that the cast neither cuts nor rounds. The assignment then refuses a text that
# is too long, but rounds numbers and times by itself: of those also the name with its modifier, where there is one.
_COLUMNS: Final = """
    SELECT a.attname::text, pg_catalog.format_type(a.atttypid, -1), a.attgenerated <> '', a.attidentity = 'a',
           CASE WHEN a.atttypmod >= 0 AND t.typnamespace = 'pg_catalog'::pg_catalog.regnamespace
                 AND pg_catalog.ltrim(t.typname::text, '_')
                     IN ('numeric', 'timestamp', 'timestamptz', 'time', 'timetz', 'interval')
                THEN pg_catalog.format_type(a.atttypid, a.atttypmod) END
    FROM pg_catalog.pg_attribute a
    JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = pg_catalog.to_regclass({table}) AND a.attnum > 0 AND NOT a.attisdropped
"""


@dataclass(frozen=True, slots=True)
class Target:
    """A table with the types of the columns that can be written."""

    schema: str
    table: str
    partitioned: bool
    has_record: bool
    types: dict[str, str]
    generated: frozenset[str]
    inserted_only: frozenset[str]
    """Of the columns that can be written, those that an UPDATE cannot: identities that are GENERATED ALWAYS."""

    rounding: dict[str, str]
    """The types, with their modifiers, of columns that round what is assigned to them."""

    @property
    def name(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.table)

    @property
    def rows(self) -> sql.Composed:
        """What a statement names that finds rows: without those of tables that inherit from this one."""
        return sql.SQL("{}{}").format(sql.SQL("" if self.partitioned else "ONLY "), self.name)

    @property
    def record(self) -> sql.Identifier:
        return sql.Identifier(self.schema, RECORD)

    @property
    def text(self) -> str:
        return self.name.as_string(None)


def find_target(session: ArrowSession, table: str, key: Sequence[str]) -> Target:
    name = sql.Literal(table)
    execute(session, _TARGET, record=sql.Literal(RECORD), key=sql.Literal(list(key)), table=name)
    found = session.fetchone()
    if found is None:
        raise TableError(f"there is no table {table!r} to apply batches to; create it with the stream's columns")
    schema, own_name, kind, has_record, unique = found
    if kind not in _TABLES:
        raise TableError(f"{table} is not a table; name the table that is to follow the stream")
    if key and not unique:
        columns = sql.SQL(", ").join(map(sql.Identifier, key)).as_string(None)
        raise TableError(
            f"the table {table} has no unique index on exactly ({columns}), or it is DEFERRABLE or has a WHERE. "
            f"Run ALTER TABLE {table} ADD PRIMARY KEY ({columns}), or name the columns of the one it has as key"
        )
    execute(session, _COLUMNS, table=name)
    found_columns = session.fetchall()
    types = {column: type_name for column, type_name, is_generated, *_ in found_columns if not is_generated}
    generated = frozenset(column for column, _, is_generated, *_ in found_columns if is_generated)
    inserted_only = frozenset(column for column, _, _, always, _ in found_columns if always)
    rounding = {column: modified for column, *_, modified in found_columns if modified}
    computed = [sql.Identifier(name).as_string(None) for name in key if name in generated]
    if computed:
        raise TableError(
            f"the key column {', '.join(computed)} of the table {table} is computed there, so no row can be found by "
            f"it. Run ALTER TABLE {table} ALTER {computed[0]} DROP EXPRESSION"
        )
    partitioned = kind == _PARTITIONED
    return Target(schema, own_name, partitioned, has_record, types, generated, inserted_only, rounding)


def execute(session: ArrowSession, statement: str, **parts: sql.Composable) -> None:
    composed: Any = sql.SQL(statement)
    session.execute(composed.format(**parts).as_string(None))
