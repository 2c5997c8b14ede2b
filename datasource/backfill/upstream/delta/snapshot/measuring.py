"""How many keys ranges hold, and where to cut them: from the key columns of the files that may hold such keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from backfill.arrow.batches import coalesced
from backfill.arrow.order import sorting_by
from backfill.plan import Extent, Measure
from backfill.upstream.delta.keys.columns import KeyColumns
from backfill.upstream.delta.keys.sorted_keys import SortedKeys, asked
from backfill.upstream.delta.snapshot.rows import Rows
from backfill.vnode import Key, KeyRange

SAMPLE: Final = 200
"""About how many keys a vnode's bound is chosen from."""

CHUNK_ROWS: Final = 1 << 20
CHUNK_BYTES: Final = 32 << 20
MANY: Final = 1 << 31
"""A request for so many rows is one for all of them, which need not be in memory together."""


def measured(table: DeltaTable, key: KeyColumns, requests: Sequence[Measure], condition: str) -> tuple[Extent, ...]:
    """How far each request goes over the rows for which the condition holds.

    Memory holds about twice as many keys as are asked for, or as `CHUNK_ROWS` and `CHUNK_BYTES` say, however many the
    ranges hold.
    """
    batches = Rows.of(table, key.schema, condition).within(key, asked(key, requests))
    if min(request.limit for request in requests) < MANY:
        keys = SortedKeys(key, _needed(key, requests, batches))
        return tuple(keys.extent(request) for request in requests)
    counts = [0] * len(requests)
    for chunk in coalesced(batches, CHUNK_ROWS, CHUNK_BYTES):
        keys = SortedKeys(key, pa.Table.from_batches([chunk]))
        counts = [count + keys.extent(request).row_count for count, request in zip(counts, requests, strict=True)]
    return tuple(Extent(count, None) for count in counts)


def _needed(key: KeyColumns, requests: Sequence[Measure], batches: Iterator[pa.RecordBatch]) -> pa.Table:
    """The keys that decide the requests' extents, and maybe others."""
    found = key.schema.empty_table()
    most, size = 2 * CHUNK_ROWS, 2 * CHUNK_BYTES
    # Adding a piece costs more the more there are already, and each of many files may have only a few of the keys.
    for batch in coalesced(batches, CHUNK_ROWS // 16, CHUNK_BYTES // 16):
        found = pa.concat_tables([found, pa.Table.from_batches([batch])])
        if found.num_rows > most or found.nbytes > size:
            found = SortedKeys(key, found).needed(requests)
            # What stays is sorted again once as many others have come, and not each time that a few have.
            most, size = 2 * max(CHUNK_ROWS, found.num_rows), 2 * max(CHUNK_BYTES, found.nbytes)
    return found


def bounds(table: DeltaTable, key: KeyColumns, *, vnodes: int, rows: int, within: KeyRange) -> tuple[Key, ...]:
    """At most `vnodes - 1` keys that cut what is within the range into about equal parts; the table has `rows` rows.

    All these keys are looked at for nulls, and some of them are put in order.
    """
    every = max(1, rows // (SAMPLE * vnodes))
    at, found = 0, []
    for batch in Rows.of(table, key.schema, "").within(key, (within,)):
        picked = range(-at % every, batch.num_rows, every)
        at += batch.num_rows
        found.append(batch.take(pa.array(picked, pa.int64())))
    return SortedKeys(key, pa.Table.from_batches(found, key.schema)).cut(vnodes)


def last_before(table: DeltaTable, key: KeyColumns, end: Key) -> Key | None:
    """The greatest key in the table that is less than `end`; None where there is none."""
    greatest = key.schema.empty_table()
    descending = sorting_by(key.names, "descending")
    for batch in Rows.of(table, key.schema, "").within(key, (KeyRange(None, end),)):
        less = batch.filter(pc.invert(key.equal(batch, end)))
        if not less.num_rows:
            continue  # pyarrow 18 to 21 cannot select from no rows.
        both: Any = pa.concat_tables([greatest, pa.Table.from_batches([less])])
        greatest = both.take(pc.select_k_unstable(both, k=1, sort_keys=descending))
    return key.texts(greatest.combine_chunks().to_batches()[0])[0] if greatest.num_rows else None
