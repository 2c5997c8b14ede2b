"""Looking up and writing many keys, chunk by chunk.

Keys are looked up by a caller that is about to write them. So what a look-up finds is passed to the write that follows,
and the state is searched once for both.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa

from backfill_state.upsert.columns import Column, Mask, Numbers
from backfill_state.upsert.segments import NUMBERED, Segments, run
from backfill_state.upsert.state import ENTRIES, Found, PutStats
from backfill_state.upsert.stored import ROW, Stored

_HEADS: Final = ("segment", *NUMBERED)


@dataclass(frozen=True)
class LookedUp:
    """Stored keys, and `| segment | seq | order_key | order_tie | present | size |` of the entry of each, or nulls."""

    keys: pa.RecordBatch
    heads: pa.Table


@dataclass(frozen=True)
class Written:
    """Updates as they are stored."""

    stored: Stored
    heads: pa.Table
    tombstones: bool
    """Whether deletions are stored."""


def look_up(
    segments: Segments,
    connection: duckdb.DuckDBPyConnection,
    keys: pa.RecordBatch,
    chunk: int,
    most_bytes: int | None = None,
) -> tuple[Found, LookedUp]:
    """The entries of stored keys, with stored rows; of the first keys only, where more have too many bytes."""
    if most_bytes is not None and segments.nested and keys.num_rows > 1:
        # Lists and structs come with their rows, however large: of a few large ones among many small, all would.
        sizes = segments.heads(connection, keys)["size"]
        keys = keys.slice(0, max(1, _fitting(_reached(sizes), most_bytes)))
    found: list[pa.Table] = []
    count = size = 0
    for begin in range(0, max(1, keys.num_rows), chunk):
        part = segments.entries(connection, keys.slice(begin, chunk))
        reached = size + _reached(part["size"])
        if most_bytes is not None:
            part = part.slice(0, max(_fitting(reached, most_bytes), 0 if count else 1))
        found.append(segments.whole(connection, part))
        count += part.num_rows
        if count < min(begin + chunk, keys.num_rows):
            break
        size = int(reached[-1]) if count else 0
    table = pa.concat_tables(found)
    rows = [name for name in table.schema.names if name.startswith(ROW)]
    entries = Found(table.select(ENTRIES.names).cast(ENTRIES), table.select(rows))
    return entries, LookedUp(keys.slice(0, count), table.select(_HEADS))


def _reached(sizes: Column) -> Numbers:
    """How many bytes each entry ends at; a null is of none."""
    return np.cumsum(sizes.fill_null(pa.scalar(0)).to_numpy())


def _fitting(reached: Numbers, most_bytes: int) -> int:
    return int(np.searchsorted(reached, most_bytes, side="right"))


def write(
    segments: Segments,
    connection: duckdb.DuckDBPyConnection,
    given: Written,
    seq: int,
    chunk: int,
    looked_up: LookedUp | None,
) -> tuple[PutStats, int]:
    """Writes the updates that are later than what there is, numbered from `seq` on; also gives the next number.

    `looked_up` is of the state as it stands, and of use if it is of the same keys.
    """
    heads, keys = given.heads, given.stored.keys
    last = _last_of_each(connection, keys, heads)
    total = PutStats(puts=keys.num_rows, stale=keys.num_rows - len(last))
    known = None
    if looked_up is not None and len(last) == keys.num_rows and looked_up.keys.equals(keys):
        known = looked_up.heads
    for begin in range(0, len(last), chunk):
        part = _taken(given, last[begin : begin + chunk])
        old = segments.heads(connection, part.stored.keys) if known is None else known.slice(begin, chunk)
        stats, seq = _write_chunk(segments, connection, part, old, seq)
        total = _sum(total, stats)
    return total, seq


def _last_of_each(connection: duckdb.DuckDBPyConnection, keys: pa.RecordBatch, heads: pa.Table) -> Numbers:
    """The places, ascending, of the last update of each key; of several of one order that is the first."""
    columns = [*keys.columns, pa.array(np.arange(keys.num_rows), pa.int64()), heads["order_key"], heads["order_tie"]]
    given = pa.table(columns, names=[*keys.schema.names, "nth", "order_key", "order_tie"])
    last = "arg_max(nth, row(order_key, order_tie, -nth))"
    sql = f"SELECT {last} AS nth FROM given GROUP BY {', '.join(keys.schema.names)} ORDER BY nth"
    places: Numbers = run(connection, given, sql)["nth"].to_numpy()
    return places


def _taken(given: Written, places: Numbers) -> Written:
    stored = given.stored
    if len(places) == len(stored.sizes):
        return given
    at = pa.array(places, pa.int64())
    taken = Stored(stored.keys.take(at), stored.rows.take(at), stored.sizes[places])
    return Written(taken, given.heads.take(at), given.tombstones)


def _write_chunk(
    segments: Segments, connection: duckdb.DuckDBPyConnection, given: Written, old: pa.Table, seq: int
) -> tuple[PutStats, int]:
    """Writes updates of different keys, whose entries so far are `old`, in the columns of `LookedUp.heads`."""
    later = _later(given.heads, old)
    stays = later if given.tombstones else later & given.heads["present"].to_numpy()
    written = given if stays.all() else _taken(given, np.flatnonzero(stays))
    segments.bury(connection, old.select(["segment", "seq", "size"]).filter(pa.array(later)).drop_null())
    segments.insert(connection, _entries(written, seq))
    return _stats(given, later, stays, old), seq + len(written.stored.sizes)


def _later(new: pa.Table, old: pa.Table) -> Mask:
    """Which updates are later than the entries beside them; all are later than none, and than one without an order."""
    key, tie = new["order_key"].to_numpy(), new["order_tie"].to_numpy()
    old_key, old_tie = (_filled(old[name], 0) for name in ("order_key", "order_tie"))
    unordered = old["order_key"].is_null().to_numpy()
    return np.asarray(unordered | (key > old_key) | ((key == old_key) & (tie > old_tie)), np.bool_)


def _filled(column: Column, value: object) -> Any:
    return column.fill_null(pa.scalar(value, column.type)).to_numpy()


def _entries(written: Written, seq: int) -> pa.Table:
    stored, heads = written.stored, written.heads
    numbers = pa.array(np.arange(seq, seq + len(stored.sizes)))
    names = [*stored.keys.schema.names, "seq", *ENTRIES.names, *stored.rows.schema.names]
    columns = [*stored.keys.columns, numbers, *heads.columns, pa.array(stored.sizes), *stored.rows.columns]
    return pa.table(columns, names=names)


def _stats(given: Written, later: Mask, stays: Mask, old: pa.Table) -> PutStats:
    before, tombstone = _filled(old["present"], False), ~_filled(old["present"], True)
    after = given.heads["present"].to_numpy()
    sizes = np.where(stays, given.stored.sizes, 0)

    def count(which: Mask) -> int:
        return int(np.count_nonzero(which & later))

    inserts, deletes = count(~before & after), count(before & ~after)
    return PutStats(
        stale=int(np.count_nonzero(~later)),
        size=int(sizes[later].sum()),
        inserts=inserts,
        updates=count(before & after),
        deletes=deletes,
        values_diff=inserts - deletes,
        tombstones_diff=count(~after & stays) - count(tombstone),
        size_diff=int((sizes - _filled(old["size"], 0))[later].sum()),
    )


def _sum(left: PutStats, right: PutStats) -> PutStats:
    return PutStats(**{item.name: getattr(left, item.name) + getattr(right, item.name) for item in fields(PutStats)})
