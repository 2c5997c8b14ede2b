"""The table: what it is, how its key space is cut, how far a range goes, and where a key lies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
import pyarrow as pa
from psycopg import sql

from backfill.errors import KeyTextError, SchemaChangedError, TableError
from backfill.options import Options
from backfill.upstream import TableSchema, TableSize
from backfill.upstream.postgres.catalog import read_table
from backfill.upstream.postgres.columns import another_column
from backfill.upstream.postgres.condition import require_condition, require_row_condition
from backfill.upstream.postgres.connection import Session
from backfill.upstream.postgres.description import (
    ColumnDescription,
    QualifiedName,
    ServerDescription,
    TableDescription,
)
from backfill.upstream.postgres.keys import (
    canonical_text,
    full_name,
    key_order,
    key_text_expression,
    key_value,
    order_by,
)
from backfill.upstream.postgres.money import require_same_decimals
from backfill.upstream.postgres.ranges import INDEX_PLANS_ONLY, KeyedTable
from backfill.upstream.postgres.relation import WantedColumn
from backfill.upstream.postgres.selection import select_columns
from backfill.upstream.postgres.server import read_server
from backfill.upstream.postgres.types import MappedColumn, map_columns
from backfill.upstream.postgres.values import decode_text, encode_text, from_change
from backfill.vnode import WHOLE_TABLE, Coverage, Key, KeyRange

PAGES_PER_VNODE: Final = 12
"""How many sampled pages decide where a vnode ends. Neighbouring rows often share a page, so pages count, not rows."""

ROWS_PER_VNODE: Final = 60
"""And about how many of their rows at the most: sorting all of them took longer than it was worth."""

PAGE_BYTES: Final = 8192
_VARCHAR: Final = 1043

_AS_IT_IS: Final = """
    SELECT pg_catalog.to_regclass(%s)::oid::int8, coalesce(pg_catalog.jsonb_object_agg(
               a.attname, pg_catalog.jsonb_build_array(a.atttypid::int8, a.atttypmod, c.name)), '{}')
    FROM pg_catalog.pg_attribute a
    LEFT JOIN (SELECT c.oid, pg_catalog.jsonb_build_array(n.nspname, c.collname) AS name
               FROM pg_catalog.pg_collation c JOIN pg_catalog.pg_namespace n ON n.oid = c.collnamespace) c
           ON c.oid = a.attcollation
    WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
"""

_IDENTITY: Final = """
    SELECT pg_catalog.to_regclass(%(name)s)::oid::int8 IS NOT DISTINCT FROM %(oid)s,
           coalesce((SELECT pg_catalog.jsonb_object_agg(attname, pg_catalog.jsonb_build_array(
                               attnum, atttypid::int8, atttypmod,
                               (SELECT pg_catalog.md5(d.adbin::text) FROM pg_catalog.pg_attrdef d
                                WHERE d.adrelid = attrelid AND d.adnum = attnum AND attgenerated <> '')))
                     FROM pg_catalog.pg_attribute
                     WHERE attrelid = %(oid)s AND attnum > 0 AND NOT attisdropped), '{}'),
           EXISTS (SELECT FROM pg_catalog.pg_index i
                   WHERE i.indrelid = %(oid)s
                     AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL
                     AND %(key)s::int2[] = ARRAY(
                         SELECT k FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS u(k, place)
                         WHERE place <= i.indnkeyatts ORDER BY k))
           AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute
                           WHERE attrelid = %(oid)s AND attnum = ANY (%(key)s::int2[]) AND NOT attnotnull)
"""

_NAME: Final = """
    SELECT n.nspname, c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = %s
"""


@dataclass(frozen=True, slots=True)
class Table:
    """What is read of the catalog once, and follows from it."""

    server: ServerDescription
    description: TableDescription
    columns: tuple[MappedColumn, ...]
    """The selected columns, then the key columns that were not selected."""

    output: tuple[str, ...]
    ordered_locally: bool
    """Whether Arrow compares keys exactly as the key's index does."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def keyed(self) -> KeyedTable:
        columns = tuple((column.name, column.attnum) for column in _carried(self))
        return KeyedTable(self.description.name, self.description.partitioned, self.description.key, columns)

    @property
    def schema(self) -> TableSchema:
        return TableSchema(
            columns=pa.schema([pa.field(column.name, column.arrow) for column in self.columns]),
            output=self.output,
            key=tuple(item.column.name for item in self.description.key),
        )

    @property
    def key(self) -> tuple[MappedColumn, ...]:
        by_name = {column.name: column for column in self.columns}
        return tuple(by_name[item.column.name] for item in self.description.key)

    @property
    def collations(self) -> str:
        """Which collations the columns of the key have."""
        columns = [item.column for item in self.description.key]
        return _listed((column.name, column.collation.name if column.collation else None) for column in columns)

    @property
    def order(self) -> str:
        """How the key's index sorts, where that is not as its columns' types and collations do by default."""
        odd = [
            item for item in self.description.key if not item.default_order or item.collation != item.column.collation
        ]
        return ", ".join(
            f"{sql.Identifier(item.column.name).as_string(None)} {item.operators[0].quoted()} "
            f"{item.collation.name.quoted() if item.collation else ''}".strip()
            for item in odd
        )

    @property
    def key_types(self) -> str:
        """Which columns the key is of, by their numbers, and of which types: what positions are made of."""
        columns = [item.column for item in self.description.key]
        return ", ".join(f"{column.attnum} {column.type.oid}" for column in columns)

    @property
    def wanted(self) -> tuple[WantedColumn, ...]:
        """The columns as the change log's decoder needs them."""
        keys = {column.name for column in self.key}
        return tuple(
            WantedColumn(column.name, column.type_oid, column.name in keys, _decoder(column)) for column in self.columns
        )

    def typed(self, keys: Sequence[Key]) -> pa.RecordBatch:
        """Keys given as text, as columns of their Arrow types."""
        columns = [
            decode_text(column, pa.array([key[at] for key in keys], pa.string())) for at, column in enumerate(self.key)
        ]
        return pa.RecordBatch.from_arrays(columns, names=[column.name for column in self.key])


def _listed(collations: Iterable[tuple[str, QualifiedName | None]]) -> str:
    """The columns that have a collation, each with it."""
    return ", ".join(f"{sql.Identifier(name).as_string(None)} {of.quoted()}" for name, of in collations if of)


def _decoder(column: MappedColumn) -> Any:
    return lambda text: from_change(column, text)


def describe(session: Session, options: Options) -> Table:
    """The table that the options name, in one state of the catalog; refuses what cannot be carried, by name."""
    with session.transaction():
        session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        server = read_server(session)
        description = read_table(session, options.dbtable)
    selected = select_columns(description, options.columns)
    columns = map_columns(selected, dict(options.custom_schema))
    require_same_decimals(session, description, [column.name for column in columns])
    by_name = {column.name: column for column in columns}
    local = [key_order(item, by_name[item.column.name]) == "local" for item in description.key]
    output = options.columns or tuple(column.name for column in description.columns)
    table = Table(server, description, columns, output, all(local))
    if options.filter:
        require_condition(session, table.keyed, "filter", options.filter)
    if options.stream.snapshot_filter:
        require_row_condition(session, table.keyed, "snapshotFilter", options.stream.snapshot_filter)
    return table


def require_unchanged(session: Session, table: Table, collations: str) -> None:
    """Refuses to read on where the table is another one by now, a column that is carried has another type, or the key
    other collations than these.

    Between two chunks nothing else would notice: the change log describes the table only when a row of it changes.
    """
    described = table.description
    oid, found = one_row(session.execute(_AS_IT_IS, [described.name.quoted(), described.oid]))
    now: dict[str, Any] = found
    if oid != described.oid:
        raise _another_table(session, described)
    carried = _carried(table)
    changed = [column.name for column in carried if now.get(column.name, [])[:2] != [column.type_oid, column.typmod]]
    if changed:
        raise SchemaChangedError(
            f"column {', '.join(changed)} of {described.name.quoted()} was dropped, renamed or given another type "
            "since the stream began. Start over with a fresh checkpointLocation and onExistingState=restart, leaving "
            "out with the option columns what is gone"
        )
    names = [item.column.name for item in described.key]
    sorted_now = _listed((name, QualifiedName(*now[name][2]) if now[name][2] else None) for name in names)
    if sorted_now != collations:
        raise SchemaChangedError(
            f"the key of {described.name.quoted()} was given another collation since the stream began ({sorted_now}, "
            f"expected {collations}), so its rows are in another order, and what has been read cannot be told from "
            "what has not. Give it back the collation that it had; or, where all rows have been read once, start the "
            "query again; or start over with a fresh checkpointLocation and onExistingState=restart"
        )


def require_same_identity(session: Session, table: Table) -> None:
    """Refuses to read on where the table, its key or a column is not the one any more that it was, by the same name.

    The change log goes by the table's OID and the columns' names. It has no word of a table that got this one's name,
    of rows that share what was a key, or of the values that a column lost which was dropped and added again.
    """
    described = table.description
    key = sorted(item.column.attnum for item in described.key)
    asked = {"name": described.name.quoted(), "oid": described.oid, "key": key}
    now: dict[str, tuple[int, int, int, str | None]]
    same, now, unique = one_row(session.execute(_IDENTITY, asked))
    if not same:
        raise _another_table(session, described)
    there = {column: now[column.name] for column in _carried(table) if column.name in now}
    others = [column.name for column, (attnum, *_) in there.items() if attnum != column.attnum]
    if others:
        raise another_column(described.name, others)
    # Another type is noticed in the change log. A varchar's values stay as they are, whatever its length; and so do
    # those of a column that is generated no more.
    rewritten = [
        column.name
        for column, (_, type_oid, typmod, expression) in there.items()
        if (type_oid == column.type_oid != _VARCHAR and typmod != column.typmod)
        or expression not in (None, column.expression)
    ]
    if rewritten:
        raise SchemaChangedError(
            f"column {', '.join(rewritten)} of {described.name.quoted()} was given another precision, scale, length or "
            "expression, which may have changed the values of all rows, of which the change log tells nothing. Start "
            "the query again, and have the rows read again with backfill re-backfill; or start over with a fresh "
            "checkpointLocation and onExistingState=restart"
        )
    if not unique:
        names = ", ".join(item.column.name for item in described.key)
        raise SchemaChangedError(
            f"the key ({names}) of {described.name.quoted()} is not unique any more: its primary key or unique index "
            "was dropped, has other columns now or was made deferrable, or its columns may be null, so rows cannot be "
            "told apart by it. Start over with a fresh checkpointLocation and onExistingState=restart"
        )


def _another_table(session: Session, described: TableDescription) -> TableError:
    name = described.name.quoted()
    found = session.execute(_NAME, [described.oid]).fetchone()
    if found is None:
        return TableError(
            f"{name} is not the table any more that the stream began with, which was dropped. Start over with a fresh "
            "checkpointLocation and onExistingState=restart"
        )
    now = QualifiedName(*found).quoted()
    return TableError(
        f"{name} is not the table any more that the stream began with: that is {now} by now. Set the option dbtable to "
        f"{now}, and start the query again; it goes on where it stopped"
    )


def _carried(table: Table) -> list[ColumnDescription]:
    names = {column.name for column in table.columns}
    return [column for column in table.description.columns if column.name in names]


def prepare_for_ranges(session: Session) -> None:
    """Makes the planner serve the statements below from the key's index, until the transaction ends."""
    for setting in INDEX_PLANS_ONLY:
        session.execute(sql.SQL(setting))


def cut(
    session: Session, table: KeyedTable, vnodes: int, size: TableSize, within: KeyRange = WHOLE_TABLE
) -> tuple[Key, ...]:
    """At most `vnodes - 1` keys that cut the range into about equal parts, by a sample of the table's pages.

    The last one is about the last key there is, so that what is added beyond it has a vnode of its own. The sample is
    as large as for the whole table; of a small part it may have nothing, and then there is one vnode.
    """
    parts = vnodes - 1
    if parts == 0:
        return ()
    sampled, chosen = _sample(size, vnodes, thinned=within == WHOLE_TABLE)
    names = [sql.Identifier(f"k{at}") for at in range(len(table.key))]
    statement = sql.SQL(
        "SELECT {texts} FROM (SELECT {columns}, row_number() OVER (ORDER BY {order}), count(*) OVER () "
        "FROM {source} {sampled} WHERE {within} AND {chosen}) AS sample({names}, place, total) "
        "WHERE place * {parts} / total > (place - 1) * {parts} / total ORDER BY place"
    ).format(
        texts=sql.SQL(", ").join(map(key_text_expression, table.key, names)),
        names=sql.SQL(", ").join(names),
        columns=sql.SQL(", ").join(full_name(item, table.name) for item in table.key),
        order=table.order,
        source=table.source,
        sampled=sampled,
        within=table.where(within),
        chosen=chosen,
        parts=sql.Literal(parts),
    )
    found = tuple(tuple(row) for row in session.execute(statement).fetchall())
    return found[:-1] if found and found[-1] == within.upto else found


def _sample(size: TableSize, vnodes: int, *, thinned: bool) -> tuple[sql.Composable, sql.Composable]:
    """What stands after the table to read some of its pages, and the condition that chooses rows among theirs."""
    pages = max(1, size.row_count * size.row_bytes // PAGE_BYTES)
    share = vnodes * PAGES_PER_VNODE / pages
    sampled: sql.Composable = sql.SQL("TABLESAMPLE SYSTEM ({})").format(sql.Literal(100 * share))
    if share >= 0.5:
        sampled, share = sql.SQL(""), 1.0
    kept = vnodes * ROWS_PER_VNODE / (size.row_count * share)
    if kept >= 1 or not thinned:
        return sampled, sql.SQL("true")
    return sampled, sql.SQL("pg_catalog.random() < {}").format(sql.Literal(kept))


def range_of(session: Session, table: KeyedTable, first: Key | None, last: Key | None) -> KeyRange:
    """The range from `first` to `last`, both included: it begins behind the last row before `first`."""
    for key in (first, last):
        if key is not None and len(key) != len(table.key):
            names = ", ".join(item.column.name for item in table.key)
            raise KeyTextError(f"a key has {len(key)} values, and the table's key is ({names})")
    try:
        with session.transaction():
            prepare_for_ranges(session)
            after = None if first is None else session.execute(_last_before(table, first)).fetchone()
            upto = None if last is None else one_row(session.execute(_canonical(table, last)))
    except (psycopg.DataError, psycopg.errors.CheckViolation) as error:
        kind = error.diag.sqlstate
        names = ", ".join(f"{item.column.name} {item.column.declared}" for item in table.key)
        raise KeyTextError(f"a value is not one of the table's key ({names}; {kind})") from None
    return KeyRange(after, upto)


def _last_before(table: KeyedTable, key: Key) -> sql.Composed:
    return sql.SQL("SELECT {} FROM {} WHERE {} ORDER BY {} LIMIT 1").format(
        table.key_texts, table.source, table.before(key), order_by(table.key, table.name, descending=True)
    )


def _canonical(table: KeyedTable, key: Key) -> sql.Composed:
    texts = [canonical_text(part, text) for part, text in zip(table.key, key, strict=True)]
    return sql.SQL("SELECT {}").format(sql.SQL(", ").join(texts))


def one_row(cursor: psycopg.Cursor[tuple[Any, ...]]) -> tuple[Any, ...]:
    """What a statement gives that always gives one."""
    row = cursor.fetchone()
    if row is None:
        raise psycopg.OperationalError("the server gave no row where one was due")
    return row


def covered_by_database(session: Session, table: KeyedTable, keys: pa.RecordBatch, coverage: Coverage) -> pa.Array[Any]:
    """For each key whether it lies in `coverage`, decided by the database: for keys whose order only it knows."""
    if not coverage:
        return pa.repeat(pa.scalar(False, pa.bool_()), keys.num_rows)
    # The keys become Python strings here, because only the database can compare them: one statement for a batch of
    # changes, and only while some vnode is under way. They are literals in it, not parameters: in a statement with
    # parameters psycopg takes a percent sign for a placeholder, also one in a key or in the name of its type.
    texts = [sql.Literal(encode_text(column).to_pylist()) for column in keys.columns]
    names = [sql.Identifier(f"k{at}") for at in range(len(texts))]
    values = [key_value(part, name) for part, name in zip(table.key, names, strict=True)]
    condition = sql.SQL(" OR ").join(sql.SQL("({})").format(table.within(item, values)) for item in coverage)
    statement = sql.SQL(
        "SELECT coalesce(array_agg({condition} ORDER BY place), '{{}}') "
        "FROM unnest({texts}) WITH ORDINALITY AS keys({names}, place)"
    ).format(
        condition=condition,
        texts=sql.SQL(", ").join(sql.SQL("{}::text[]").format(column) for column in texts),
        names=sql.SQL(", ").join(names),
    )
    return pa.array(one_row(session.execute(statement))[0], pa.bool_())
