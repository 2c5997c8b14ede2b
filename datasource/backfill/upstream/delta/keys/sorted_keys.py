"""Keys in order: counting and cutting ranges of them, and what a key may not be."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backfill.arrow.arrays import mask
from backfill.arrow.order import sorting_by
from backfill.errors import TableError
from backfill.plan import Extent, Measure
from backfill.upstream.delta.keys.columns import KeyColumns, Values
from backfill.vnode import Coverage, Key, merged


class SortedKeys:
    """Keys in ascending order, none of them twice."""

    def __init__(self, columns: KeyColumns, keys: pa.Table) -> None:
        """`keys` may come in any order; TableError where one is null, or comes twice."""
        self._columns = columns
        keys = keys.select(columns.names).combine_chunks()
        require_keys(keys)
        self._keys = ordered = keys.sort_by(sorting_by(columns.names))
        self._arrays = [column.comparable(ordered.column(column.name).combine_chunks()) for column in columns.columns]
        require_distinct(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays[0])

    def _at(self, place: int) -> Values:
        return tuple(array[place].as_py() for array in self._arrays)

    def extent(self, request: Measure) -> Extent:
        """How far the request goes: over the first `request.limit` keys of its range."""
        first, end = self._places(request)
        if end - first <= request.limit:
            return Extent(max(0, end - first), None)
        return Extent(request.limit, self._columns.key(self._at(first + request.limit - 1)))

    def needed(self, requests: Sequence[Measure]) -> pa.Table:
        """The keys that decide the requests' extents whatever others are found: of each range the first ones, and one
        more, which tells that there are more.
        """
        decides = np.zeros(len(self), np.bool_)
        for request in requests:
            first, end = self._places(request)
            decides[first : min(end, first + request.limit + 1)] = True
        return self._keys.filter(pa.array(decides))

    def _places(self, request: Measure) -> tuple[int, int]:
        return self._place(request.range.after, 0), self._place(request.range.upto, len(self))

    def _place(self, end: Key | None, otherwise: int) -> int:
        if end is None:
            return otherwise
        return bisect_right(range(len(self)), self._columns.values(end), key=self._at)

    def cut(self, parts: int) -> tuple[Key, ...]:
        """At most `parts - 1` of the keys, that cut them into about equal parts."""
        places = sorted({len(self) * part // parts for part in range(1, parts)}) if len(self) else []
        return tuple(self._columns.key(self._at(at)) for at in places)


def asked(columns: KeyColumns, requests: Sequence[Measure]) -> Coverage:
    """The ranges of the requests, in key order."""
    ranges = [request.range for request in requests]
    first = [item for item in ranges if item.after is None]
    others = [(columns.values(item.after), item) for item in ranges if item.after is not None]
    return merged([*first, *(item for _, item in sorted(others, key=lambda pair: pair[0]))])


def require_keys(keys: pa.Table | pa.RecordBatch) -> None:
    missing = [name for name in keys.schema.names if keys.column(name).null_count]
    if missing:
        raise TableError(
            f"the key column {', '.join(missing)} is null in some rows, which cannot be followed; delete or fill "
            "those rows, or name other columns with the option keyColumns"
        )


def require_distinct(ordered: Sequence[pa.Array[Any]]) -> None:
    """Refuses keys, given in order, if two neighbours are the same."""
    if len(ordered[0]) < 2:
        return
    same = np.ones(len(ordered[0]) - 1, np.bool_)
    for array in ordered:
        same &= mask(pc.equal(array[1:], array[:-1]))
    if same.any():
        raise not_unique()


def not_unique() -> TableError:
    return TableError(
        "the table has several rows with the same key; remove the surplus rows, or name columns that identify a row "
        "with the option keyColumns"
    )
