"""How the key space is cut, and where keys lie in it, as the database says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import psycopg
import pyarrow as pa
from psycopg import sql

from backfill.errors import KeyTextError
from backfill.upstream.postgres.session import locks
from backfill.upstream.postgres.session.connection import Session, one_row
from backfill.upstream.postgres.session.failures import NOT_IN_ENCODING
from backfill.upstream.postgres.snapshot.plans import INDEX_PLANS_ONLY
from backfill.upstream.postgres.tables.keys import key_literal, key_text_expression, key_value, order_by
from backfill.upstream.postgres.tables.ranges import KeyedTable, unnested
from backfill.upstream.postgres.tables.size import StoredSize
from backfill.upstream.postgres.values.conversion import encode_text
from backfill.vnode import WHOLE_TABLE, Coverage, Key, KeyRange

PAGES_PER_VNODE: Final = 12
"""How many sampled pages decide where a vnode ends. Neighbouring rows often share a page, so pages count, not rows."""

ROWS_PER_VNODE: Final = 60
"""About how many rows of these pages are looked at, at the most: sorting all of them took longer than it was worth."""


def cut(
    session: Session, table: KeyedTable, vnodes: int, size: StoredSize, within: KeyRange = WHOLE_TABLE
) -> tuple[Key, ...]:
    """At most `vnodes - 1` keys that cut the range into about equal parts, by a sample of the table's pages.

    The last one is about the last key there is, so that what is added beyond it has a vnode of its own. The sample is
    as large as for the whole table; of a small part it may have nothing, and then there is one vnode.
    """
    parts = vnodes - 1
    if parts == 0:
        return ()
    sampled, chosen = _sample(size, vnodes, thinned=within == WHOLE_TABLE)
    statement = sql.SQL(
        "SELECT {texts} FROM (SELECT {columns}, "
        "pg_catalog.row_number() OVER (ORDER BY {order}), pg_catalog.count(*) OVER () "
        "FROM {source} {sampled} WHERE {within} AND {chosen}) AS sample({names}, place, total) "
        "WHERE place * {parts} / total > (place - 1) * {parts} / total ORDER BY place"
    ).format(
        texts=table.alias_texts,
        names=sql.SQL(", ").join(table.aliases),
        columns=table.key_columns,
        order=table.order,
        source=table.source,
        sampled=sampled,
        within=table.where(within),
        chosen=chosen,
        parts=sql.Literal(parts),
    )
    found = tuple(locks.asked(session, statement))
    return found[:-1] if found and found[-1] == within.upto else found


def _sample(size: StoredSize, vnodes: int, *, thinned: bool) -> tuple[sql.Composable, sql.Composable]:
    """The clause after the table's name that reads some of its pages, and the condition that chooses rows of these."""
    share = vnodes * PAGES_PER_VNODE / size.pages
    sampled: sql.Composable = sql.SQL("TABLESAMPLE SYSTEM ({})").format(sql.Literal(100 * share))
    if share >= 0.5:
        sampled, share = sql.SQL(""), 1.0
    kept = vnodes * ROWS_PER_VNODE / (size.row_count * share)
    if kept >= 1 or not thinned:
        return sampled, sql.SQL("true")
    return sampled, sql.SQL("pg_catalog.random() < {}::float8").format(sql.Literal(kept))


def range_of(session: Session, table: KeyedTable, first: Key | None, last: Key | None) -> KeyRange:
    """The range from `first` to `last`, both included: it begins behind the last row before `first`."""
    for key in (first, last):
        if key is not None and len(key) != len(table.key):
            raise KeyTextError(f"a key has {len(key)} values, and the table's key is ({', '.join(table.key_names)})")
    try:
        with session.transaction():
            session.execute(locks.IN_TRANSACTION)
            session.execute(INDEX_PLANS_ONLY)
            after = None if first is None else session.execute(_last_before(table, first)).fetchone()
            upto = None if last is None else one_row(session.execute(_canonical(table, last)))
    except (psycopg.DataError, psycopg.errors.CheckViolation, psycopg.errors.SyntaxError) as error:
        # SyntaxError is what the input of some types raises, as ltree's.
        kind = error.diag.sqlstate or NOT_IN_ENCODING  # What the server would say of a NUL, which psycopg refuses.
        names = ", ".join(f"{item.column.name} {item.column.declared}" for item in table.key)
        raise KeyTextError(f"a value does not fit the table's key ({names}; {kind})") from None
    return KeyRange(after, upto)


def _last_before(table: KeyedTable, key: Key) -> sql.Composed:
    return sql.SQL("SELECT {} FROM {} WHERE {} ORDER BY {} LIMIT 1").format(
        table.key_texts, table.source, table.before(key), order_by(table.key, table.name, descending=True)
    )


def _canonical(table: KeyedTable, key: Key) -> sql.Composed:
    texts = [key_text_expression(part, key_literal(part, text)) for part, text in zip(table.key, key, strict=True)]
    return sql.SQL("SELECT {}").format(sql.SQL(", ").join(texts))


def covered_by_database(session: Session, table: KeyedTable, keys: pa.RecordBatch, coverage: Coverage) -> pa.Array[Any]:
    """For each key, whether it lies in `coverage`, as the database says: for keys whose order only it knows."""
    if not coverage:
        return pa.repeat(pa.scalar(False, pa.bool_()), keys.num_rows)
    # The keys become Python strings here, because only the database can compare them: one statement for a batch of
    # changes, and only while some vnode is under way. They are literals in it, not parameters: in a statement with
    # parameters psycopg takes a percent sign for a placeholder, also one in a key or in the name of its type.
    texts = [encode_text(column).to_pylist() for column in keys.columns]
    values = [key_value(part, name) for part, name in zip(table.key, table.aliases, strict=True)]
    condition = _in_any(table, coverage, values)
    statement = sql.SQL(
        "SELECT coalesce(pg_catalog.array_agg({condition} ORDER BY place), '{{}}') "
        "FROM {texts} WITH ORDINALITY AS keys({names}, place)"
    ).format(
        condition=condition,
        texts=unnested(texts),
        names=sql.SQL(", ").join(table.aliases),
    )
    return pa.array(one_row(session.execute(statement))[0], pa.bool_())


def _in_any(table: KeyedTable, coverage: Coverage, values: Sequence[sql.Composable]) -> sql.Composable:
    """The condition that the key made of these values lies in `coverage`, which may have a range for each reader.

    The key's place among their ends is searched for in halves, so that twice as many ranges take one comparison more.
    """
    ends = [end for item in coverage for end in (item.after, item.upto) if end is not None]

    def passed(fewest: int, most: int) -> sql.Composable:
        """The condition for a key behind `fewest` to `most` of the ends: each end leads into a range or out of it."""
        if fewest == most:
            return sql.SQL("true" if most % 2 == (coverage[0].after is not None) else "false")
        middle = (fewest + most) // 2
        return sql.SQL("CASE WHEN {} THEN {} ELSE {} END").format(
            table.within(KeyRange(None, ends[middle]), values), passed(fewest, middle), passed(middle + 1, most)
        )

    return passed(0, len(ends))
