"""From the option `dbtable` to one table, refused where its rows cannot be streamed."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg.rows import class_row

from backfill.errors import TableError
from backfill.upstream.postgres.description import QualifiedName, quoted
from backfill.upstream.postgres.session.connection import Session, one_row
from backfill.wording import FRESH_START

_FIRST_NORMAL_OID: Final = 16384  # below are system objects, which no publication may have (is_publishable_class)
_SUGGESTIONS: Final = 3

_RELATION: Final = """
    SELECT c.oid::int8 AS oid, n.nspname AS schema, c.relname AS name, c.relkind::text AS kind,
           c.relpersistence::text AS persistence, c.relreplident::text AS replica_identity,
           c.relkind <> 'p' AND EXISTS (
               SELECT FROM pg_catalog.pg_inherits h WHERE h.inhparent = c.oid) AS has_children,
           pg_catalog.has_schema_privilege(n.oid, 'USAGE') AS schema_usable,
           pg_catalog.has_any_column_privilege(c.oid, 'SELECT') AS selectable,
           pg_catalog.row_security_active(c.oid) AS row_security, CURRENT_USER::text AS role
    FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relname = %(name)s::name
      AND CASE WHEN %(schema)s::text IS NULL THEN pg_catalog.pg_table_is_visible(c.oid)
               ELSE n.nspname = %(schema)s::name END
"""

_OTHERS: Final = """
    SELECT n.nspname AS schema, c.relname AS name
    FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.oid >= %s AND c.relpersistence <> 't'
      AND pg_catalog.has_schema_privilege(n.oid, 'USAGE')
    ORDER BY 1, 2
    LIMIT 10000
"""

_OTHER_KINDS: Final = {
    "v": "a view; changes are logged for tables only. Read the tables it is made of",
    "m": "a materialized view; its changes are not logged. Read the tables it is made of",
    "f": "a foreign table; its rows and their changes are on another server. Connect to that server",
    "S": "a sequence. Name a table",
    "i": "an index. Name its table",
    "I": "an index. Name its table",
    "c": "a composite type. Name a table",
    "t": "a TOAST table. Name the table it belongs to",
}


@dataclass(frozen=True, slots=True)
class RelationRow:
    """A row of pg_class and what the role may do with it."""

    oid: int
    schema: str
    name: str
    kind: str
    persistence: str
    replica_identity: str
    has_children: bool
    schema_usable: bool
    selectable: bool
    row_security: bool
    role: str

    @property
    def qualified(self) -> QualifiedName:
        return QualifiedName(self.schema, self.name)


def find_table(session: Session, dbtable: str, *, follows: bool) -> RelationRow:
    """The table that `dbtable` names in this session, by the rules of SQL: folding, quotes, `search_path`.

    `follows`: whether its changes are to be in the log.
    """
    schema, name = _parsed(session, dbtable)
    with session.cursor(row_factory=class_row(RelationRow)) as cursor:
        found = cursor.execute(_RELATION, {"schema": schema, "name": name}).fetchone()
    if found is None:
        raise TableError(_not_found(session, dbtable, name))
    _require_usable(found, follows=follows)
    return found


def _parsed(session: Session, dbtable: str) -> tuple[str | None, str]:
    try:
        # The database's own parser; the cast to name cuts what is too long, as the server would.
        query = "SELECT pg_catalog.parse_ident(%s)::name[]::text[], pg_catalog.current_database()::text"
        parts, database = one_row(session.execute(query, [dbtable]))
    except (psycopg.errors.InvalidParameterValue, psycopg.errors.UntranslatableCharacter):
        raise TableError(
            f"the option dbtable is {dbtable!r}, which is not the name of a table. Write orders, public.orders or, "
            'with upper case or other characters, "My Schema"."Orders"; a query is not allowed'
        ) from None
    match parts:
        case [name]:
            return None, name
        case [schema, name]:
            return schema, name
        case [catalog, schema, name] if catalog == database:
            return schema, name
        case _:
            raise TableError(
                f"the option dbtable is {dbtable!r}; the connection leads to the database {database!r}, whose tables "
                "are named schema.table"
            )


def _not_found(session: Session, dbtable: str, name: str) -> str:
    with session.cursor(row_factory=class_row(QualifiedName)) as cursor:
        others = cursor.execute(_OTHERS, [_FIRST_NORMAL_OID]).fetchall()
    # The same name in another schema is more likely meant than any other name.
    same = [other.quoted() for other in others if other.name.lower() == name.lower()]
    close = difflib.get_close_matches(name.lower(), {other.name.lower() for other in others}, _SUGGESTIONS)
    meant = same or [other.quoted() for other in others if other.name.lower() in close]
    named = f"Did you mean {' or '.join(meant[:_SUGGESTIONS])}?"
    hint = named if meant else "Name it with its schema; if it was renamed, a stream goes on under its new name"
    return f"there is no table {dbtable!r} that this role can see. {hint}"


def _require_usable(table: RelationRow, *, follows: bool) -> None:
    name = table.qualified.quoted()
    if table.oid < _FIRST_NORMAL_OID:
        raise TableError(f"{name} belongs to the system catalogs; their changes are not logged for streaming")
    if table.kind in _OTHER_KINDS:
        raise TableError(f"{name} is {_OTHER_KINDS[table.kind]}")
    if table.persistence == "u" and follows:
        # Up to version 17 a partitioned table may be unlogged, and SET LOGGED does nothing there.
        again = "Make it again without UNLOGGED, and attach its partitions to the new one; SET LOGGED does nothing"
        mend = again if table.kind == "p" else f"Run ALTER TABLE {name} SET LOGGED"
        raise TableError(
            f"{name} is unlogged, so its changes are not in the log. {mend}. A stream that began before has missed "
            f"what was written since: start over with {FRESH_START}"
        )
    if table.persistence == "t":
        raise TableError(f"{name} is a temporary table; its changes are not logged, and other sessions cannot read it")
    if table.has_children:
        raise TableError(
            f"{name} has inheritance children: its rows lie in several tables, over which no key is unique. Stream "
            "the children one by one, or turn it into a partitioned table. A stream that began before it had "
            f"children goes on after ALTER TABLE … NO INHERIT {name} for each of them (psql's \\d+ lists them)"
        )
    _require_rights(table)


def _require_rights(table: RelationRow) -> None:
    name, role = table.qualified.quoted(), quoted(table.role)
    grants = []
    if not table.schema_usable:
        grants.append(f"GRANT USAGE ON SCHEMA {quoted(table.schema)} TO {role}")
    if not table.selectable:
        grants.append(f"GRANT SELECT ON {name} TO {role}")
    if grants:
        raise TableError(f"the role {role} may not read {name}. Run {'; '.join(grants)}")
    if table.row_security:
        raise TableError(
            f"row-level security hides rows of {name} from the role {role}, but the change log shows them all. "
            f"Run ALTER ROLE {role} BYPASSRLS, or connect as a role to which no policy applies"
        )
