"""The table's rows in key order, as SQL: selects over key ranges that the key's own index serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from psycopg import sql

from backfill.upstream.postgres.columns import Numbered
from backfill.upstream.postgres.description import KeyColumn, QualifiedName
from backfill.upstream.postgres.keys import (
    compare,
    full_name,
    key_column,
    key_literal,
    key_text_expression,
    key_value,
    order_by,
)
from backfill.vnode import Key, KeyRange

INDEX_PLANS_ONLY: Final = (
    "SET LOCAL enable_seqscan = off",
    "SET LOCAL enable_bitmapscan = off",
    "SET LOCAL enable_sort = off",
    "SET LOCAL max_parallel_workers_per_gather = 0",
)
"""For transactions that read ranges. The planner might else sort half of the table to read the other half in order."""


@dataclass(frozen=True, slots=True)
class KeyedTable:
    """The table as its key orders it; picklable."""

    name: QualifiedName
    partitioned: bool
    key: tuple[KeyColumn, ...]
    columns: Numbered = ()
    """Those that are read."""

    @property
    def identifier(self) -> sql.Identifier:
        return self.name.identifier()

    @property
    def source(self) -> sql.Composable:
        """What stands after FROM: without the rows of tables that inherit from it, whose changes have other names."""
        return sql.SQL("{}{}").format(sql.SQL("" if self.partitioned else "ONLY "), self.identifier)

    @property
    def lock(self) -> sql.Composed:
        """A statement that locks the table, with its partitions, as any SELECT does.

        Not LOCK TABLE, for which a role needs rights to the whole table, where some columns may be all it can read.
        """
        return sql.SQL("SELECT 1 FROM {} LIMIT 0").format(self.source)

    @property
    def order(self) -> sql.Composable:
        return order_by(self.key, self.name)

    @property
    def key_texts(self) -> sql.Composable:
        """The key's columns as their lossless text, separated by commas."""
        return sql.SQL(", ").join(key_text_expression(part, full_name(part, self.name)) for part in self.key)

    @property
    def key_columns(self) -> sql.Composable:
        """The key's columns as they are, separated by commas."""
        return sql.SQL(", ").join(full_name(part, self.name) for part in self.key)

    @property
    def aliases(self) -> list[sql.Identifier]:
        """What the key's columns are called outside of the table: their own names may be taken there."""
        return [sql.Identifier(f"k{at}") for at in range(len(self.key))]

    @property
    def alias_texts(self) -> sql.Composable:
        """As `key_texts`, of columns that are called by these aliases."""
        return sql.SQL(", ").join(map(key_text_expression, self.key, self.aliases))

    @property
    def _columns(self) -> list[sql.Composable]:
        return [key_column(part, self.name) for part in self.key]

    def where(self, item: KeyRange) -> sql.Composable:
        """The condition that a row's key lies in this range."""
        return self.within(item, self._columns)

    def is_one_of(self, texts: Sequence[Sequence[str | None]]) -> sql.Composable:
        """The condition that a row's key is among these, given as their lossless texts, column by column."""
        names = self.aliases
        values = [key_value(part, sql.SQL("asked.{}").format(name)) for part, name in zip(self.key, names, strict=True)]
        return sql.SQL("EXISTS (SELECT FROM {} AS asked({}) WHERE {})").format(
            unnested(texts),
            sql.SQL(", ").join(names),
            compare(self.key, self._columns, "=", values),
        )

    def within(self, item: KeyRange, values: Sequence[sql.Composable]) -> sql.Composable:
        """The condition that the key made of these values lies in this range.

        What both ends begin with is compared for equality, so that an index serves the rest also where a row
        comparison cannot be had: of one tenant's rows, say, with a key of citext and int.
        """
        begun = _begun_alike(item)
        conditions = []
        if item.after is not None and begun:
            same = self._literals(item.after)[:begun]
            conditions.append(compare(self.key[:begun], values[:begun], "=", same))
        if item.after is not None:
            conditions.append(compare(self.key[begun:], values[begun:], ">", self._literals(item.after)[begun:]))
        if item.upto is not None:
            conditions.append(compare(self.key[begun:], values[begun:], "<=", self._literals(item.upto)[begun:]))
        return sql.SQL(" AND ").join(conditions) if conditions else sql.SQL("true")

    def before(self, key: Key) -> sql.Composable:
        """The condition that a row's key comes before this one."""
        return compare(self.key, self._columns, "<", self._literals(key))

    def _literals(self, key: Key) -> list[sql.Composable]:
        return [key_literal(part, text) for part, text in zip(self.key, key, strict=True)]

    def select(self, columns: sql.Composable, item: KeyRange, only: str = "") -> sql.Composed:
        """The rows of the range, or only those for which a condition holds that has passed `require_condition`."""
        rows = sql.SQL("SELECT {} FROM {} WHERE {}").format(columns, self.source, self.where(item))
        return sql.SQL("{} AND {}").format(rows, operand(only)) if only else rows


def unnested(texts: Sequence[Sequence[str | None]]) -> sql.Composable:
    """What stands after FROM for columns of texts. Only a bare `unnest`, which may be anybody's, takes several."""
    columns = [
        sql.SQL("pg_catalog.unnest({}::pg_catalog.text[])").format(sql.Literal(list(column))) for column in texts
    ]
    return sql.SQL("ROWS FROM ({})").format(sql.SQL(", ").join(columns))


def _begun_alike(item: KeyRange) -> int:
    """With how many of a key's columns both ends of a range begin, short of all of them."""
    if item.after is None or item.upto is None:
        return 0
    pairs = zip(item.after[:-1], item.upto[:-1], strict=True)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))


def operand(condition: str) -> sql.Composable:
    """A condition that the user has written, as one operand. The line break ends a comment that it may end with."""
    return sql.SQL("({}\n)").format(sql.SQL(condition))
