"""How many keys ranges hold, and where to cut them: from the key columns of the files that may hold such keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable

from backfill.errors import KeyTextError
from backfill.plan import Extent, Request
from backfill.upstream.delta.keys import KeyColumns
from backfill.upstream.delta.scan import rows_where, scanned
from backfill.upstream.delta.sorted_keys import SortedKeys, asked, require_keys
from backfill.vnode import Coverage, Key, KeyRange

SAMPLE: Final = 200
"""About how many keys a vnode's bound is chosen from."""

CHUNK_ROWS: Final = 1 << 20
MANY: Final = 1 << 31
"""A request for so many rows is one for all of them, which need not be in memory together."""


def measured(
    table: DeltaTable, key: KeyColumns, columns: pa.Schema, requests: Sequence[Request], condition: str
) -> tuple[Extent, ...]:
    """How far each request goes over the rows for which the condition holds; `columns` are those of the key."""
    batches = _keys_within(table, key, columns, asked(key, requests), condition)
    if min(request.limit for request in requests) < MANY:
        keys = SortedKeys(key, pa.Table.from_batches(batches, columns))
        return tuple(keys.extent(request) for request in requests)
    counts = [0] * len(requests)
    for chunk in _chunks(batches, columns):
        keys = SortedKeys(key, chunk)
        counts = [count + keys.extent(request).row_count for count, request in zip(counts, requests, strict=True)]
    return tuple(Extent(count, None) for count in counts)


def bounds(table: DeltaTable, key: KeyColumns, columns: pa.Schema, *, vnodes: int, rows: int) -> tuple[Key, ...]:
    """At most `vnodes - 1` keys that cut the table, of about so many rows, into about equal parts.

    All keys are looked at for nulls, and some of them are put in order.
    """
    every = max(1, rows // (SAMPLE * vnodes))
    at, found = 0, []
    for batch in scanned(table, key.names, None):
        require_keys(batch)
        picked = range(-at % every, batch.num_rows, every)
        at += batch.num_rows
        found.append(batch.cast(columns).take(pa.array(picked, pa.int64())))
    return SortedKeys(key, pa.Table.from_batches(found, columns)).cut(vnodes)


def _keys_within(
    table: DeltaTable, key: KeyColumns, columns: pa.Schema, coverage: Coverage, condition: str
) -> Iterator[pa.RecordBatch]:
    for batch in rows_where(table, key.names, key.predicate(coverage), condition):
        keys = batch.cast(columns)
        require_keys(keys)
        yield keys.filter(key.covered(keys, coverage))


def _chunks(batches: Iterator[pa.RecordBatch], columns: pa.Schema) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(each.num_rows for each in held) >= CHUNK_ROWS:
            yield pa.Table.from_batches(held, columns)
            held = []
    yield pa.Table.from_batches(held, columns)


def canonical(columns: KeyColumns, key: Key) -> Key:
    """The key as it stands in positions; KeyTextError where it is none."""
    if len(key) != len(columns.names):
        raise KeyTextError(f"a key has {len(key)} values, and the table's key is ({', '.join(columns.names)})")
    try:
        columns.typed([key])
        return columns.key(columns.values(key))
    except (ValueError, ArithmeticError, OverflowError):
        raise KeyTextError(f"a value is not one of the table's key ({', '.join(columns.names)})") from None


def last_before(table: DeltaTable, key: KeyColumns, columns: pa.Schema, first: Key) -> Key | None:
    """The last key of the table that comes before this one."""
    end, found = key.values(first), []
    for batch in scanned(table, key.names, None):
        keys = batch.cast(columns)
        below = pa.Table.from_batches([keys.filter(key.covered(keys, (KeyRange(None, first),)))])
        if below.num_rows:
            ordered = below.sort_by([(name, "descending") for name in key.names]).slice(0, 2)
            arrays = [item.comparable(ordered.column(item.name).combine_chunks()) for item in key.columns]
            found += [row for row in zip(*(array.to_pylist() for array in arrays), strict=True) if row < end]
    return key.key(max(found)) if found else None
