"""What would keep a stream from beginning, or surprise it later, found before it is started. Changes nothing.

A stream finds one obstacle after the other, each when it meets it; here all are looked for at once, by the same checks.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Final, TypeVar

import psycopg
from psycopg import sql

from backfill.errors import BackfillError, DatabaseSetupError
from backfill.options import Options
from backfill.upstream.findings import Finding, refused
from backfill.upstream.postgres.description import KeyColumn, QualifiedName, TableDescription, quoted
from backfill.upstream.postgres.replication import publication, slot, slots, standbys
from backfill.upstream.postgres.replication.writers import against_whole_rows, require_writable
from backfill.upstream.postgres.session import locks, room
from backfill.upstream.postgres.session.connection import Connector, Session, one_row
from backfill.upstream.postgres.session.failures import translating
from backfill.upstream.postgres.session.server import (
    read_server,
    require_countable,
    require_lasting_snapshots,
    require_logical,
    require_primary,
)
from backfill.upstream.postgres.tables.catalog import read_table
from backfill.upstream.postgres.tables.condition import require_row_condition
from backfill.upstream.postgres.tables.keys import compare, full_name, key_text_expression, key_value, require_usable
from backfill.upstream.postgres.tables.money import require_same_decimals
from backfill.upstream.postgres.tables.partitions import without_whole_rows
from backfill.upstream.postgres.tables.ranges import KeyedTable
from backfill.upstream.postgres.tables.selection import select_columns
from backfill.upstream.postgres.values.types import map_column, map_columns

T = TypeVar("T")

_RIGHTS: Final = """
    SELECT current_user::text, pg_catalog.current_database(),
           pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE')
"""
_OWNED: Final = "SELECT pg_catalog.pg_has_role(relowner, 'USAGE') FROM pg_catalog.pg_class WHERE oid = %s"
_LARGE: Final = """
    SELECT attname::text FROM pg_catalog.pg_attribute
    WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped AND attstorage <> 'p' ORDER BY attnum
"""


def examine(options: Options) -> tuple[Finding, ...]:
    """Everything that is found; what the database refuses to tell is a finding too."""
    found = []
    try:
        with Connector.of_options(options).session() as session, translating():
            for each in _found(session, options):
                found.append(each)  # noqa: PERF402 - those before an error are kept
    except BackfillError as error:
        found.append(Finding(error.message))
    return tuple(dict.fromkeys(found))  # Two checks may refuse the same thing.


def _refused(check: Callable[..., T], *arguments: object) -> Generator[Finding, None, T | None]:
    """As `refused`, for a check that asks the database, whose own errors are translated."""

    def asked() -> T:
        with translating():
            return check(*arguments)

    return refused(asked)


def _found(session: Session, options: Options) -> Iterator[Finding]:
    follows = options.follows
    yield from _refused(_require_server, session, follows)
    yield from _refused(lambda: require_lasting_snapshots(read_server(session)))
    yield from room.findings(session, options.stream.num_partitions)
    if follows:
        yield from _slots(session, options.slot_name)
    table = yield from _refused(partial(read_table, follows=follows), session, options.dbtable)
    if table is not None:
        yield from _columns(session, table, options)
    if follows:
        yield from _rights(session, options, table)
    if follows and table is not None:
        yield from _refused(require_writable, session, options.publication_name, table)
        yield from _surprises(session, table, options)


def _require_server(session: Session, follows: bool) -> None:
    server = read_server(session)
    require_primary(server)
    require_countable(server)
    if follows:
        require_logical(server)


def _slots(session: Session, name: str) -> Iterator[Finding]:
    """Whether the slot of this name can be used, if it is there already, else whether one can be made; and how much log
    the server keeps for it.
    """
    there = slot.find(session, name) if name else None
    if there is not None:
        yield from _refused(slot.require_usable, session, there)
        away = standbys.away(session, name)
        if away:
            yield Finding(f"a stream from replication slot {name} would wait: {away}", refuses=False)
    yield from slots.findings(session, needs_one=there is None)


def _columns(session: Session, table: TableDescription, options: Options) -> Iterator[Finding]:
    types = dict(options.custom_schema)
    selected = (
        yield from _refused(partial(select_columns, follows=options.follows), table, options.columns)
    ) or table.columns
    yield from _refused(map_columns, selected, types)
    yield from _refused(require_same_decimals, session, table, [column.name for column in selected])
    for key in table.key:
        yield from _refused(_require_key, key, types.get(key.column.name))
    keyed = KeyedTable(table.name, table.partitioned, table.key)
    yield from _refused(_require_comparable, session, keyed)
    if options.stream.snapshot_filter:
        yield from _refused(require_row_condition, session, keyed, "snapshotFilter", options.stream.snapshot_filter)


def _require_key(key: KeyColumn, custom_type: str | None) -> None:
    require_usable(key, map_column(key.column, custom_type))


def _require_comparable(session: Session, table: KeyedTable) -> None:
    """Refuses a key of an extension's type that the role may read but not compare, which takes rights of its own."""
    schemas = {part.column.type.name.schema for part in table.key} - {"pg_catalog"}
    if not schemas:
        return
    columns = [full_name(part, table.name) for part in table.key]
    values = [key_value(part, key_text_expression(part, name)) for part, name in zip(table.key, columns, strict=True)]
    statement = sql.SQL("EXPLAIN SELECT FROM {} WHERE {}")
    try:
        locks.asked(session, statement.format(table.source, compare(table.key, columns, "<=", values)))
    except psycopg.errors.InsufficientPrivilege as error:
        named = ", ".join(map(quoted, sorted(schemas)))
        raise DatabaseSetupError(
            f"the role may not compare values of the key ({error.diag.message_primary}). Run GRANT USAGE ON SCHEMA "
            f"{named} TO …, and if that is not enough, GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {named} TO …"
        ) from None


def _rights(session: Session, options: Options, table: TableDescription | None) -> Iterator[Finding]:
    role, database, creates = one_row(session.execute(_RIGHTS))
    role, database = map(quoted, (role, database))
    mend = slot.granting(session)
    if mend:
        yield Finding(f"the role {role} may not use replication slots", mend)
    if table is None:
        return
    if options.publication_name:
        carried = options.columns or tuple(column.name for column in table.columns)
        names = tuple(dict.fromkeys([*carried, *table.key_names]))
        yield from _refused(publication.require, session, options.publication_name, table.oid, names)
        return
    (owns,) = one_row(session.execute(_OWNED, [table.oid]))
    if not owns:
        name = slot.default_name(table.name.schema, table.name.name, "feed")
        statement = publication.creating(session, name, table)
        yield Finding(
            f"the role {role} does not own {table.name.quoted()}, so it may not publish it. Let the owner publish it, "
            f"and set publicationName={name}",
            statement.as_string(session),
        )
    elif not creates:
        yield Finding(
            f"the role {role} may not make a publication in {database}",
            f"GRANT CREATE ON DATABASE {database} TO {role}",
        )


def _surprises(session: Session, table: TableDescription, options: Options) -> Iterator[Finding]:
    yield from slots.of_streams(session, table.name)
    if options.stream.last_rows is None:
        yield from _key_alone(session, table, options)
    if table.partitioned:
        yield Finding(
            f"{table.name.quoted()} is partitioned: it is read and followed through its root. The log does not show "
            "that a single partition was truncated, attached, detached or dropped, what was written to one between "
            "SET UNLOGGED and SET LOGGED, nor the old key of a row whose key was updated while the partition had "
            "another index as its replica identity",
            refuses=False,
        )


def _key_alone(session: Session, table: TableDescription, options: Options) -> Iterator[Finding]:
    """The finding for a log that has only the key of a row before an update or delete.

    That depends on each partition; whether the log calls what it has the whole row depends on the root (`partitions`).
    """
    itself = [] if table.replica_identity == "f" else [table.name]
    without = without_whole_rows(session, table.oid) if table.partitioned else itself
    if not itself and not without:
        return
    toast = _ends_by_toast(session, table, options) if without else ""
    whole, mend = _logging_whole_rows(session, table, options, [*itself, *without])
    yield Finding(
        f"the log of {table.name.quoted()} has only the key of the row before an update or delete, so there is no "
        f"update_preimage{toast}. {whole}; changelog=full keeps the last row of every key beside the stream instead",
        mend,
        refuses=False,
    )


def _ends_by_toast(session: Session, table: TableDescription, options: Options) -> str:
    """The words for large values that an update may leave out; empty where no column that is carried may have any."""
    carried = (set(options.columns) or {column.name for column in table.columns}).difference(table.key_names)
    large = ", ".join(name for (name,) in session.execute(_LARGE, [table.oid]).fetchall() if name in carried)
    ways = "changelog=full" if options.stream.snapshot_filter else "onUnchangedToast=mark or changelog=full"
    return large and f". An update that leaves out a large unchanged value of {large} ends the stream, unless {ways}"


def _logging_whole_rows(
    session: Session, table: TableDescription, options: Options, lacking: Sequence[QualifiedName]
) -> tuple[str, str]:
    """The words for REPLICA IDENTITY FULL, and the SQL that gives it to those that lack it, if that is a way at all."""
    no_way, _ = against_whole_rows(session, options.publication_name, table)
    if table.replica_identity == "i":
        no_way = "the key is the index that is the replica identity"
    if no_way:
        return f"REPLICA IDENTITY FULL is not possible, because {no_way}", ""
    also = ", and a partition that is made later needs it as well" if table.partitioned else ""
    mend = "; ".join(f"ALTER TABLE {name.quoted()} REPLICA IDENTITY FULL" for name in dict.fromkeys(lacking))
    return f"REPLICA IDENTITY FULL logs whole rows, which makes the log longer{also}", mend
