"""The stream's publication: made, found, checked, dropped.

It is made before the slot: pgoutput looks it up as it was when each change was made, so a slot that is older than its
publication fails on the changes between the two, up to PostgreSQL 17; from 18 on they are left out without a word. A
slot that was there already is moved past them (`Place.begin`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

import psycopg
from psycopg import sql

from backfill.errors import BackfillError, DatabaseSetupError, SchemaChangedError, TableError
from backfill.upstream.postgres.description import STORED_ARE_PUBLISHED, QualifiedName, TableDescription, quoted
from backfill.upstream.postgres.replication.blockers import logging_blockers
from backfill.upstream.postgres.replication.published import is_left_out, listed, listing
from backfill.upstream.postgres.session.connection import Asked, Connector, Session, one_row
from backfill.upstream.postgres.session.locks import take_without_snapshot
from backfill.wording import FRESH_START, OF_A_READ

_NOTE: Final = "made by backfill, membership "

_NO_TABLE: Final = 0
"""No table has this OID."""

_OF_NEW_STREAM: Final = (
    "run CREATE PUBLICATION {} FOR TABLE …, or leave out publicationName, for a new stream, to have one made"
)

_SCHEMAS_ARE_PUBLISHED: Final = 150000

_PUBLISHED: Final = """
    WITH own AS (SELECT c.oid, c.relnamespace FROM pg_catalog.pg_class c
                 WHERE c.oid = %(oid)s
                    OR c.oid IN (SELECT relid::oid FROM pg_catalog.pg_partition_ancestors(%(oid)s::oid::regclass)))
    SELECT p.pubinsert AND p.pubupdate AND p.pubdelete AND p.pubtruncate, p.oid::int8,
           {membership},
           ARRAY[p.xmin::text],
           ARRAY(SELECT pg_catalog.concat(r.oid, ' ', r.xmin) FROM pg_catalog.pg_publication_rel r
                 WHERE r.prpubid = p.oid AND r.prrelid IN (SELECT oid FROM own) ORDER BY r.oid),
           {schemas},
           pg_catalog.obj_description(p.oid, 'pg_publication'), ({listed})
    FROM pg_catalog.pg_publication p WHERE p.pubname = %(name)s
"""

# Moving a table to another schema and back leaves another version of the pg_depend row by which it depends on its own.
_SCHEMAS: Final = """
           ARRAY(SELECT pg_catalog.concat(s.oid, ' ', s.xmin, ' ', d.xmin) FROM pg_catalog.pg_publication_namespace s
                 JOIN own ON own.relnamespace = s.pnnspid
                 LEFT JOIN pg_catalog.pg_depend d
                        ON d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = own.oid
                       AND d.objsubid = 0 AND d.refclassid = 'pg_catalog.pg_namespace'::pg_catalog.regclass
                 WHERE s.pnpubid = p.oid ORDER BY s.oid, own.oid)
"""
_NO_SCHEMAS: Final = "'{}'::text[]"

_MEMBERSHIP: Final = """
           coalesce((SELECT r.oid::int8 FROM pg_catalog.pg_publication_rel r
                     WHERE r.prpubid = p.oid AND r.prrelid = %(oid)s), 0)
"""

_PRESENT: Final = f"""
    SELECT p.oid::int8, {_MEMBERSHIP}, pg_catalog.obj_description(p.oid, 'pg_publication')
    FROM pg_catalog.pg_publication p WHERE p.pubname = %(name)s
"""

_ABOVE: Final = """
    SELECT c.oid::int8, n.nspname, c.relname
    FROM pg_catalog.pg_partition_ancestors(%s::oid::regclass) AS a
    JOIN pg_catalog.pg_class c ON c.oid = a.relid::oid
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
"""


@dataclass(frozen=True, slots=True)
class Publication:
    """A publication and the table's membership in it, by OID; `membership` is 0 where it has all tables of a kind.

    An OID is another one once somebody has dropped the publication or the membership and made it again. `noted` is the
    membership that a stream has written into the comment of its own publication; None where the comment says no such
    thing, because a person made the publication or replaced the comment.
    """

    oid: int
    membership: int
    noted: int | None = field(compare=False)

    @property
    def ids(self) -> tuple[int, int]:
        """The OIDs, which no ALTER PUBLICATION changes, unless it takes out the table."""
        return self.oid, self.membership


@dataclass(frozen=True, slots=True)
class Published(Publication):
    """A publication that publishes everything of the table that the stream carries.

    `versions` are those of the rows in the catalog by which the table is published, by itself, with its schema or
    through what it is a partition of: any ALTER PUBLICATION that concerns it changes them, and so does another owner.
    """

    versions: tuple[str, ...]

    @property
    def versions_text(self) -> str:
        """The versions as a bookmark notes them; never empty."""
        return ", ".join(self.versions)


def make(connector: Connector, session: Session, name: str, table: TableDescription) -> None:
    """Publishes the table, through its root where it is partitioned; does nothing where the name is taken."""
    if find(session, name, table.oid):
        return
    statement = creating(session, name, table)
    try:
        with logging_blockers(connector, session, f"publication {name}"), _transaction(session):
            take_without_snapshot(session, table.name.identifier())
            session.execute(statement)
            note_membership(session, name, table.oid)
    except (psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation):
        # UniqueViolation where the server was still making it for a driver that has died, and this has waited for that.
        return
    except psycopg.errors.RaiseException as error:
        raise DatabaseSetupError(
            f"the database does not let the stream publish the table: {error.diag.message_primary}. An event trigger "
            "may refuse CREATE PUBLICATION: let it allow the role, or let somebody whom it allows run "
            f"{statement.as_string(session)}, and set publicationName={name}"
        ) from None
    except psycopg.errors.InsufficientPrivilege as error:
        (role,) = one_row(session.execute("SELECT current_user::text"))
        role, database = map(quoted, (role, session.info.dbname))
        raise DatabaseSetupError(
            f"the role may not publish the table ({error.diag.message_primary}). Where it owns the table, run GRANT "
            f"CREATE ON DATABASE {database} TO {role}. Else let the table's owner run {statement.as_string(session)}, "
            f"and set publicationName={name}"
        ) from None


@contextmanager
def _transaction(session: Session) -> Iterator[None]:
    """A transaction whose commit does not wait for a synchronous standby: one may be away for long, without a word.

    Nobody misses a publication that a failover loses: no stream goes on after one, unless its slot came along.
    """
    with session.transaction():
        session.execute("SET LOCAL synchronous_commit = local")
        yield


def creating(session: Session, name: str, table: TableDescription) -> sql.Composed:
    """The statement that publishes everything that a stream may carry of the table, on this server."""
    generated = ", publish_generated_columns = stored" if session.info.server_version >= STORED_ARE_PUBLISHED else ""
    return sql.SQL("CREATE PUBLICATION {} FOR TABLE {} WITH (publish_via_partition_root = true{})").format(
        sql.Identifier(name), table.name.own_rows(partitioned=table.partitioned), sql.SQL(generated)
    )


def note_membership(session: Session, name: str, oid: int) -> None:
    """Writes the table's present membership into the comment of a publication of ours."""
    found = find(session, name, oid)
    if found is None or found.noted == found.membership:
        return  # There is nothing to write, and only its owner could.
    statement = noting(name, found.membership)
    try:
        with _transaction(session):
            session.execute(statement)
    except psycopg.errors.InsufficientPrivilege as error:
        raise DatabaseSetupError(
            f"{error.diag.message_primary}, which somebody has made again; let its owner run "
            f"{statement.as_string(session)}"
        ) from None


def find(session: Session, name: str, oid: int) -> Publication | None:
    """The publication of this name, whatever it publishes; None where there is none."""
    row = session.execute(_PRESENT, {"name": name, "oid": oid}).fetchone()
    return None if row is None else Publication(row[0], row[1], _noted(row[2]))


def is_of_stream(session: Session, name: str) -> bool:
    """Whether there is a publication of this name, and a stream made it and not a person."""
    found = find(session, name, _NO_TABLE)
    return found is not None and found.noted is not None


def noting(name: str, membership: int) -> sql.Composed:
    """The statement that writes this membership into the publication's comment, as `note_membership` does."""
    comment = sql.SQL("COMMENT ON PUBLICATION {} IS {}")
    return comment.format(sql.Identifier(name), sql.Literal(f"{_NOTE}{membership}"))


def require_none_of_others(session: Session, name: str) -> None:
    """Raises where somebody else has made the publication that a stream is about to make."""
    found = find(session, name, _NO_TABLE)
    if found is not None and found.noted is None:
        raise DatabaseSetupError(
            f"publication {name} exists already and was not made by this stream; set publicationName={name} to use it "
            "anyway"
        )


def require(
    session: Session,
    name: str,
    oid: int,
    columns: tuple[str, ...],
    *,
    mend: str = _OF_NEW_STREAM,
    asked: Asked | None = None,
) -> Published:
    """As `checked`; DatabaseSetupError where there is no such publication. {} in `mend` stands for its name."""
    found = checked(session, name, oid, columns, asked)
    if found is None:
        raise DatabaseSetupError(f"publication {name} does not exist; {mend.format(quoted(name))}")
    return found


def ask(session: Session, name: str, oid: int) -> Asked:
    """Asks for what `require` and `checked` look at."""
    schemas = _SCHEMAS if session.info.server_version >= _SCHEMAS_ARE_PUBLISHED else _NO_SCHEMAS
    query = sql.SQL(_PUBLISHED).format(
        membership=sql.SQL(_MEMBERSHIP), schemas=sql.SQL(schemas), listed=sql.SQL(listing(session))
    )
    return session.execute(query, {"oid": oid, "name": name})


def checked(
    session: Session, name: str, oid: int, columns: tuple[str, ...], asked: Asked | None = None
) -> Published | None:
    """The publication of this name; None where there is none. `asked` is what `ask` returned, if it was called before.

    Raises where it would leave out rows, columns or kinds of changes that the stream carries.
    """
    row = (asked or ask(session, name, oid)).fetchone()
    if row is None:
        return None
    whole, publication, membership, *versions, comment, found = row
    if not whole:
        raise DatabaseSetupError(
            f"publication {name} leaves out some kinds of changes; run ALTER PUBLICATION {quoted(name)} SET "
            "(publish = 'insert, update, delete, truncate')"
        )
    if found is None:
        raise _not_listed(session, name, oid)
    if found.get("rowfilter"):
        raise DatabaseSetupError(f"publication {name} filters the table's rows; publish the table without WHERE")
    missing = set(columns) - set(found.get("attnames") or columns)
    if missing:
        raise _not_published(session, name, oid, missing)
    return Published(publication, membership, _noted(comment), tuple(chain(*versions)))


def _not_published(session: Session, name: str, oid: int, missing: set[str]) -> BackfillError:
    query = "SELECT attname::text FROM pg_catalog.pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped"
    gone = missing.difference(column for (column,) in session.execute(query, [oid]))
    if gone:
        return SchemaChangedError(
            f"column {', '.join(sorted(gone))} was dropped or renamed since the query began. Start the query again, "
            f"without that column in the option columns; if that is refused, start over with {FRESH_START}. "
            f"{OF_A_READ}"
        )
    return DatabaseSetupError(
        f"publication {name} does not publish column {', '.join(sorted(missing))}; publish it (a stored generated "
        f"column, from PostgreSQL 18 on, by ALTER PUBLICATION {quoted(name)} SET (publish_generated_columns = "
        "stored)), or leave it out with the option columns, if no last rows are kept"
    )


def _not_listed(session: Session, name: str, oid: int) -> BackfillError:
    """Why the publication does not publish the table under its own name, and what to do."""
    there = session.execute("SELECT relpersistence::text FROM pg_catalog.pg_class WHERE oid = %s", [oid]).fetchone()
    if there == ("u",):
        return TableError(
            "the table is unlogged now, so its changes are not in the log. Run ALTER TABLE … SET LOGGED, then start "
            f"over with {FRESH_START}. {OF_A_READ}"
        )
    if there is None:
        return TableError(
            f"the table was dropped since the stream began, or dropped and made again. Start over with {FRESH_START}. "
            f"{OF_A_READ}"
        )
    for above, *its_name in session.execute(_ABOVE, [oid]).fetchall():
        if listed(session, name, above) is not None:
            return DatabaseSetupError(
                f"publication {name} publishes the table under the name of {QualifiedName(*its_name).quoted()}: set "
                "dbtable to that name, or, for a new stream, leave out publicationName to have one made"
            )
    alter = f"ALTER PUBLICATION {quoted(name)}"
    if is_left_out(session, name, oid):
        return DatabaseSetupError(
            f"publication {name} publishes all tables EXCEPT some, and this table is one of those; run {alter} SET "
            "ALL TABLES without it in EXCEPT"
        )
    return DatabaseSetupError(
        f"publication {name} does not publish the table under its own name; run {alter} ADD TABLE … if the table is "
        f"not in it, and for a partitioned table {alter} SET (publish_via_partition_root = true)"
    )


def drop(session: Session, publication: str) -> str:
    """Drops the publication, unless a person made it, as errors of `make` advise; says for people what became of it."""
    found = find(session, publication, _NO_TABLE)
    if found is None:
        return f"publication {publication} (gone already)"
    if found.noted is None:
        return f"publication {publication} (kept: not made by a stream)"
    with _transaction(session):
        session.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(publication)))
    return f"publication {publication}"


def _noted(comment: str | None) -> int | None:
    noted = re.fullmatch(rf"{_NOTE}(\d+)", comment or "")
    return int(noted[1]) if noted else None
