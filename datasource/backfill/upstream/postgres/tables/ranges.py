"""The table's rows by key ranges, as SQL: selects that the key's own index can serve."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TypeAlias

from psycopg import sql

from backfill.upstream.postgres.description import ColumnDescription, KeyColumn, QualifiedName
from backfill.upstream.postgres.tables.keys import (
    compare,
    full_name,
    key_column,
    key_literal,
    key_text_expression,
    key_value,
    order_by,
)
from backfill.vnode import Key, KeyRange

Form: TypeAlias = tuple[bool, bool, int]
"""Whether a range lacks its lower end and its upper one, and in how many leading columns of the key these are equal."""


@dataclass(frozen=True, slots=True)
class KeyedTable:
    """The table as its key orders it; picklable."""

    name: QualifiedName
    partitioned: bool
    key: tuple[KeyColumn, ...]
    columns: tuple[ColumnDescription, ...] = ()
    """The columns that are read."""

    @property
    def key_names(self) -> list[str]:
        return [part.column.name for part in self.key]

    @property
    def source(self) -> sql.Composed:
        """What stands after FROM."""
        return self.name.own_rows(partitioned=self.partitioned)

    @property
    def lock(self) -> sql.Composed:
        """A statement that locks the table, with its partitions, as any SELECT does.

        Not LOCK TABLE, for which a role needs rights to the whole table, while some columns may be all it can read.
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
        """As `key_texts`, for key columns that a query names by `aliases`."""
        return sql.SQL(", ").join(map(key_text_expression, self.key, self.aliases))

    @property
    def _columns(self) -> list[sql.Composable]:
        return [key_column(part, self.name) for part in self.key]

    def where(self, item: KeyRange) -> sql.Composable:
        """The condition that a row's key lies in this range."""
        return self._rows_between(self._literals(item.after), self._literals(item.upto), _begun_alike(item))

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

        Leading columns that are equal at both ends are compared for equality, so that an index serves the rest even
        where a row comparison is not possible: for one tenant's rows, say, with a key of citext and int.
        """
        return self._between(values, self._literals(item.after), self._literals(item.upto), _begun_alike(item))

    def _between(
        self,
        values: Sequence[sql.Composable],
        after: Sequence[sql.Composable],
        upto: Sequence[sql.Composable],
        begun: int,
    ) -> sql.Composable:
        """As `within`, for ends given column by column; an empty one stands for no end."""
        conditions = []
        if after and begun:
            conditions.append(compare(self.key[:begun], values[:begun], "=", after[:begun]))
        if after:
            conditions.append(compare(self.key[begun:], values[begun:], ">", after[begun:]))
        if upto:
            conditions.append(compare(self.key[begun:], values[begun:], "<=", upto[begun:]))
        return sql.SQL(" AND ").join(conditions) if conditions else sql.SQL("true")

    def _rows_between(
        self, after: Sequence[sql.Composable], upto: Sequence[sql.Composable], begun: int
    ) -> sql.Composable:
        """The condition that a row's key lies between these ends.

        A comparison of several columns lets the server pass over no partition, so the first is also compared alone.
        """
        columns = self._columns
        conditions = [self._between(columns, after, upto, begun)]
        if self.partitioned and begun + 1 < len(self.key):
            first = slice(begun, begun + 1)
            if after:
                conditions.append(compare(self.key[first], columns[first], ">=", after[first]))
            if upto:
                conditions.append(compare(self.key[first], columns[first], "<=", upto[first]))
        return sql.SQL(" AND ").join(conditions)

    def counts(self, ranges: Sequence[KeyRange], most: Sequence[int], only: str) -> sql.Composed:
        """A query for how many rows each of these ranges of one form has, up to so many: a line for each, in order.

        It is planned once, which for a table of a thousand partitions takes some 40 ms. It counts in the order of the
        key, or it might be planned with another index that begins with the same column.
        """
        # Within the subselect, the table's name hides the same name outside.
        asked = "asked" if self.name.name != "asked" else "wanted"
        after = _by_column("after", [item.after for item in ranges])
        upto = _by_column("upto", [item.upto for item in ranges])
        texts = {"most": [str(rows) for rows in most], **after, **upto}

        def values(names: Iterable[str]) -> list[sql.Composable]:
            return [key_value(part, sql.Identifier(asked, name)) for part, name in zip(self.key, names, strict=False)]

        where = self._rows_between(values(after), values(upto), _begun_alike(ranges[0]))
        return sql.SQL(
            "SELECT (SELECT pg_catalog.count(*) FROM (SELECT FROM {source} WHERE {where} "
            "ORDER BY {order} LIMIT CAST({most} AS pg_catalog.int8)) AS r) "
            "FROM {texts} WITH ORDINALITY AS {asked}({names}, place) ORDER BY place"
        ).format(
            source=self.source,
            where=_also(where, only),
            order=self.order,
            most=sql.Identifier(asked, "most"),
            texts=unnested(list(texts.values())),
            asked=sql.Identifier(asked),
            names=sql.SQL(", ").join(map(sql.Identifier, texts)),
        )

    def counts_at_once(self, ranges: Sequence[KeyRange], most: int, only: str) -> sql.Composed:
        """A query for how many rows each of these ranges has, by one look at all of them, and how many were looked at.

        If `most` were looked at, there may be more.
        """
        counts = [
            sql.SQL("pg_catalog.count(*) FILTER (WHERE {})").format(self.within(item, self.aliases)) for item in ranges
        ]
        anywhere = sql.SQL("({})").format(sql.SQL(" OR ").join(map(self.where, ranges)))
        return sql.SQL(
            "SELECT {counts} FROM (SELECT {columns} FROM {source} WHERE {where} LIMIT {most}) AS r({aliases})"
        ).format(
            counts=sql.SQL(", ").join([*counts, sql.SQL("pg_catalog.count(*)")]),
            columns=sql.SQL(", ").join(self._columns),
            source=self.source,
            where=_also(anywhere, only),
            most=sql.Literal(most),
            aliases=sql.SQL(", ").join(self.aliases),
        )

    def ascends(self, item: KeyRange) -> sql.Composable:
        """The condition that the range still ends behind its beginning, as it did when its ends were found."""
        if item.after is None or item.upto is None:
            return sql.SQL("true")
        return compare(self.key, self._literals(item.after), "<", self._literals(item.upto))

    def before(self, key: Key) -> sql.Composable:
        """The condition that a row's key comes before this one."""
        return compare(self.key, self._columns, "<", self._literals(key))

    def _literals(self, key: Key | None) -> list[sql.Composable]:
        return [] if key is None else [key_literal(part, text) for part, text in zip(self.key, key, strict=True)]

    def select(self, columns: sql.Composable, item: KeyRange, only: str) -> sql.Composed:
        """A query for the rows of the range for which the condition `only` holds, which has passed `require_condition`;
        for all of them where it is empty.
        """
        return sql.SQL("SELECT {} FROM {} WHERE {}").format(columns, self.source, _also(self.where(item), only))


def unnested(texts: Sequence[Sequence[str | None]]) -> sql.Composable:
    """A FROM item of these columns of texts. Only a bare `unnest` takes several arrays, and that may be anybody's."""
    columns = [
        sql.SQL("pg_catalog.unnest({}::pg_catalog.text[])").format(sql.Literal(list(column))) for column in texts
    ]
    return sql.SQL("ROWS FROM ({})").format(sql.SQL(", ").join(columns))


def form(item: KeyRange) -> Form:
    return item.after is None, item.upto is None, _begun_alike(item)


def _by_column(name: str, keys: Sequence[Key | None]) -> dict[str, Sequence[str | None]]:
    """The keys' texts, column by column, under numbered names; nothing where they are None."""
    given = [key for key in keys if key is not None]
    return {f"{name}{at}": texts for at, texts in enumerate(zip(*given, strict=True))}


def _also(condition: sql.Composable, only: str) -> sql.Composable:
    return sql.SQL("{} AND {}").format(condition, operand(only)) if only else condition


def _begun_alike(item: KeyRange) -> int:
    """How many of the key's first columns are equal at both ends of the range; never all of them."""
    if item.after is None or item.upto is None:
        return 0
    pairs = zip(item.after[:-1], item.upto[:-1], strict=True)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))


def operand(condition: str) -> sql.Composable:
    """A condition that the user has written, as one operand. The line break ends a comment that it may end with."""
    return sql.SQL("({}\n)").format(sql.SQL(condition))
