"""The table that batches are applied to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from psycopg import sql

from backfill.errors import TableError
from backfill.sinks.applied import BEGIN_ANEW
from backfill.upstream.postgres.description import QualifiedName, quoted
from backfill.upstream.postgres.session.arrow_session import ArrowSession
from backfill.upstream.postgres.tables.partitions import with_partitions

RECORD: Final = "backfill_batches"

# pg_class.relkind
_PARTITIONED: Final = "p"
_TABLES: Final = ("r", _PARTITIONED)

_TABLE: Final = """
    SELECT n.nspname::text, c.relname::text
    FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = pg_catalog.to_regclass({table})::oid AND c.relkind IN ('r', 'p')
"""

_TARGET: Final = f"""
    SELECT c.oid::int8, n.nspname::text, c.relname::text, c.relkind::text,
           EXISTS (SELECT FROM pg_catalog.pg_class r WHERE r.relnamespace = n.oid AND r.relname = {{record}}),
           ({with_partitions("c.oid")}
            SELECT pg_catalog.format('%I.%I', w.nspname, u.relname)
            FROM partitions
            JOIN pg_catalog.pg_class u ON u.oid = relid AND u.relkind = 'r' AND u.relpersistence = 'u'
                                      AND (u.relispartition OR relid = c.oid)  -- not a table that inherits from it
            JOIN pg_catalog.pg_namespace w ON w.oid = u.relnamespace
            LIMIT 1),
           (SELECT pg_catalog.quote_ident(rulename) FROM pg_catalog.pg_rewrite
            WHERE ev_class = c.oid AND ev_type IN ('2', '3') AND ev_enabled <> 'D'  -- on UPDATE and INSERT
            LIMIT 1)
    FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = pg_catalog.to_regclass({{table}})::oid
"""

# The columns of the index that is the key; not of one WITHOUT OVERLAPS, whose operator would find rows that overlap.
# The operator of enums is not found for a domain over an enum, so the enum is named. Names of the catalog are ordered
# by bytes, so those that are given are as well, whatever the order of the database. A constraint's index comes first:
# by any other the server may not tell which of two is meant.
_KEY: Final = """
    SELECT a.attname::text, n.nspname::text, o.oprname::text,
           (WITH RECURSIVE base AS (
                SELECT t.oid, t.typtype, t.typbasetype FROM pg_catalog.pg_type t WHERE t.oid = a.atttypid
                UNION ALL
                SELECT t.oid, t.typtype, t.typbasetype FROM base JOIN pg_catalog.pg_type t ON t.oid = base.typbasetype)
            SELECT pg_catalog.format_type(base.oid, -1) FROM base WHERE base.typtype = 'e'),
           ln.nspname::text, l.collname::text, cn.nspname::text, c.opcname::text, i.conname::text
    FROM (SELECT i.*, u.conname FROM pg_catalog.pg_index i
          LEFT JOIN pg_catalog.pg_constraint u ON u.conindid = i.indexrelid AND u.conrelid = i.indrelid
                                              AND u.contype IN ('p', 'u')
          WHERE i.indrelid = pg_catalog.to_regclass({table})::oid AND i.indisunique AND NOT i.indisexclusion
            AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
            AND ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a
                      WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey[:i.indnkeyatts - 1])
                      ORDER BY a.attname)
                OPERATOR(pg_catalog.=) ARRAY(SELECT k FROM pg_catalog.unnest({key}::text[]) k
                                             ORDER BY k COLLATE pg_catalog."C")
          ORDER BY i.indisprimary DESC, u.conname IS NULL, i.indexrelid LIMIT 1) i
    CROSS JOIN pg_catalog.generate_series(0, i.indnkeyatts - 1) place
    JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[place]
    JOIN pg_catalog.pg_opclass c ON c.oid = i.indclass[place]
    JOIN pg_catalog.pg_namespace cn ON cn.oid = c.opcnamespace
    JOIN pg_catalog.pg_amop m ON m.amopfamily = c.opcfamily AND m.amopstrategy = 3 AND m.amoppurpose = 's'
                             AND m.amoplefttype = c.opcintype AND m.amoprighttype = c.opcintype
    JOIN pg_catalog.pg_operator o ON o.oid = m.amopopr
    JOIN pg_catalog.pg_namespace n ON n.oid = o.oprnamespace
    LEFT JOIN pg_catalog.pg_collation l ON l.oid = i.indcollation[place]
    LEFT JOIN pg_catalog.pg_namespace ln ON ln.oid = l.collnamespace
"""

# A type's name without its modifier, so that the cast neither cuts nor rounds. The assignment then refuses a text that
# is too long, but rounds numbers and times by itself: these also have the name with its modifier, where there is one.
# A cast to name or "char" would cut any text, so to columns of these a text is assigned.
_COLUMNS: Final = """
    SELECT a.attname::text,
           CASE WHEN NOT t.short THEN pg_catalog.format_type(a.atttypid, -1)
                WHEN t.typelem = 0 OR t.typname = 'name' THEN 'text' ELSE 'text[]' END,
           a.attgenerated <> '', a.attidentity = 'a',
           CASE WHEN t.short THEN pg_catalog.format_type(a.atttypid, -1)
                WHEN a.atttypmod >= 0 AND t.typnamespace = 'pg_catalog'::pg_catalog.regnamespace::oid
                 AND pg_catalog.ltrim(t.typname::text, '_')
                     IN ('numeric', 'timestamp', 'timestamptz', 'time', 'timetz', 'interval')
                THEN pg_catalog.format_type(a.atttypid, a.atttypmod) END,
           'pg_catalog.money'::pg_catalog.regtype::oid IN (a.atttypid, t.typbasetype, t.typelem)
    FROM pg_catalog.pg_attribute a
    JOIN (SELECT *, typnamespace = 'pg_catalog'::pg_catalog.regnamespace::oid
                    AND typname::text IN ('name', 'char', '_name', '_char') AS short
          FROM pg_catalog.pg_type) t ON t.oid = a.atttypid
    WHERE a.attrelid = pg_catalog.to_regclass({table})::oid AND a.attnum > 0 AND NOT a.attisdropped
"""


@dataclass(frozen=True, slots=True)
class Equality:
    """How the key's index compares values of a column, under any `search_path`; `enum` is their type, if it is one.

    The index may have another collation than the column.
    """

    operator: QualifiedName
    enum: str | None
    collation: QualifiedName | None
    operators: QualifiedName
    """The class that the operator belongs to."""

    def of(self, one: sql.Composable, other: sql.Composable) -> sql.Composable:
        sides = [one, other]
        if self.enum is not None:
            # The type's name is the server's own.
            sides = [sql.SQL("CAST({} AS {})").format(side, sql.SQL(self.enum)) for side in sides]
        if self.collation is not None:
            sides[0] = sql.SQL("{} COLLATE {}").format(sides[0], self.collation.identifier())
        return sql.SQL("{} {} {}").format(sides[0], self.operator.operator(), sides[1])

    def inferred(self, column: sql.Composable) -> sql.Composable:
        """The column as ON CONFLICT is to name it, so that it finds no index that compares otherwise."""
        if self.collation is not None:
            column = sql.SQL("{} COLLATE {}").format(column, self.collation.identifier())
        return sql.SQL("{} {}").format(column, self.operators.identifier())


@dataclass(frozen=True, slots=True)
class Column:
    """A row of `_COLUMNS`."""

    name: str
    type: str
    generated: bool
    """Whether the database computes it, so that it cannot be written."""

    inserted_only: bool
    """Whether an UPDATE cannot write it: an identity that is GENERATED ALWAYS."""

    rounding: str | None
    """The type with its modifier, where it rounds or cuts what is assigned to it."""

    money: bool

    @property
    def quoted(self) -> str:
        return quoted(self.name)


@dataclass(frozen=True, slots=True)
class Index:
    """The unique index that is the key: another one on its columns may compare otherwise."""

    columns: dict[str, Equality]
    constraint: str | None
    """The constraint that the index belongs to, if any."""


@dataclass(frozen=True, slots=True)
class Target:
    """A table with its columns, and its key."""

    oid: int
    name: QualifiedName
    partitioned: bool
    has_record: bool
    key: Index
    columns: dict[str, Column]

    @property
    def rows(self) -> sql.Composed:
        """The table as a statement that finds rows names it."""
        return self.name.own_rows(partitioned=self.partitioned)

    @property
    def record(self) -> sql.Identifier:
        return sql.Identifier(self.name.schema, RECORD)

    @property
    def text(self) -> str:
        return self.name.quoted()


def lock_target(session: ArrowSession, table: str) -> None:
    """Lets nobody alter the table until the transaction ends, and waits for whoever is doing so.

    Else a batch that waits for an ALTER TABLE would go by the columns before it, and round what must not be rounded.
    """
    execute(session, _TABLE, table=sql.Literal(table))
    found = session.fetchone()
    if found is not None:
        # Not its partitions, which may be many and have the columns and the key that it has.
        execute(session, "LOCK TABLE ONLY {name} IN ROW EXCLUSIVE MODE", name=QualifiedName(*found).identifier())


def find_target(session: ArrowSession, table: str, key: Sequence[str]) -> Target:
    """The table that this name has in the session; TableError where no batches with this key can be applied to it.

    Without a `key`, the table needs none.
    """
    execute(session, _TARGET, record=sql.Literal(RECORD), table=sql.Literal(table))
    found = session.fetchone()
    if found is None:
        raise TableError(f"there is no table {table!r} to apply batches to; create it with the stream's columns")
    oid, *name, kind, has_record, unlogged, rule = found
    _require_kept_as_written(table, kind, unlogged, rule)
    partitioned = kind == _PARTITIONED
    return Target(
        oid, QualifiedName(*name), partitioned, has_record, _index(session, table, key), _columns(session, table, key)
    )


def _require_kept_as_written(table: str, kind: str, unlogged: str | None, rule: str | None) -> None:
    """Refuses what is no table; and one with an unlogged part or a rule, by which it may lack rows of a batch."""
    if kind not in _TABLES:
        raise TableError(f"{table} is not a table; name the table that is to follow the stream")
    if unlogged is not None:
        raise TableError(
            f"the table {unlogged} is UNLOGGED: after a crash or a failover its rows are gone, and the record of the "
            f"batches would not show it. Run ALTER TABLE {unlogged} SET LOGGED; if that has happened since batches "
            f"were applied, {BEGIN_ANEW}"
        )
    if rule is not None:
        # PostgreSQL refuses ON CONFLICT by itself where it takes the rule to matter: not one that does nothing instead.
        raise TableError(
            f"the table {table} has the rule {rule} on INSERT or UPDATE, by which rows of a batch would not be "
            f"written to it. Run DROP RULE {rule} ON {table}"
        )


def _index(session: ArrowSession, table: str, key: Sequence[str]) -> Index:
    execute(session, _KEY, key=sql.Literal(list(key)), table=sql.Literal(table))
    found = session.fetchall()
    columns = {
        column: Equality(
            QualifiedName(where, operator),
            enum,
            QualifiedName(place, collation) if collation else None,
            QualifiedName(*operators),
        )
        for column, where, operator, enum, place, collation, *operators, _ in found
    }
    if key and not columns:
        listed = ", ".join(map(quoted, key))
        raise TableError(
            f"the table {table} has no unique index on exactly ({listed}), or it is DEFERRABLE, INVALID or WITHOUT "
            f"OVERLAPS, or has a WHERE. Run ALTER TABLE {table} ADD PRIMARY KEY ({listed}), or, if it has one, ALTER "
            f"TABLE {table} ADD UNIQUE ({listed}); or name the columns of its unique index as key"
        )
    return Index(columns, found[0][-1] if found else None)


def _columns(session: ArrowSession, table: str, key: Sequence[str]) -> dict[str, Column]:
    execute(session, _COLUMNS, table=sql.Literal(table))
    columns = {column.name: column for column in (Column(*row) for row in session.fetchall())}
    computed = [columns[name].quoted for name in key if columns[name].generated]
    if computed:
        raise TableError(
            f"the key column {', '.join(computed)} of the table {table} is computed there, so no row can be found by "
            f"it. Run ALTER TABLE {table} ALTER {computed[0]} DROP EXPRESSION"
        )
    return columns


def is_empty(session: ArrowSession, target: Target) -> bool:
    """Whether the target has no row, as the session's transaction sees it."""
    execute(session, "SELECT NOT EXISTS (SELECT FROM {rows})", rows=target.rows)
    return session.fetchone() == (True,)


def execute(session: ArrowSession, statement: str, **parts: sql.Composable) -> None:
    """Carries out a statement with these parts in the place of their names; those that it does not name are unused."""
    session.execute(composed(statement, **parts))


def composed(statement: str, **parts: sql.Composable) -> str:
    """A statement with these parts in the place of their names; those that it does not name are unused."""
    text: Any = sql.SQL(statement)
    found: str = text.format(**parts).as_string(None)
    return found
