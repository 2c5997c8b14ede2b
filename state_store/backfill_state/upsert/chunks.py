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
import pyarrow.compute as pc
import pyarrow.types as pt

from backfill_state.given import found_with
from backfill_state.upsert.columns import Array, Column, Mask, Numbers
from backfill_state.upsert.segments import NUMBERED, Segments
from backfill_state.upsert.state import ENTRIES, Found, PutStats
from backfill_state.upsert.stored import ROW, StoredUpdates

_HEADS: Final = ("segment", *NUMBERED)


@dataclass(frozen=True)
class LookupResult:
    """Stored keys, and `| segment | seq | order_key | order_tie | present | size |` of the entry of each, or nulls."""

    keys: pa.RecordBatch
    heads: pa.Table


@dataclass(frozen=True)
class Chunks:
    """Looks up and writes the entries of any number of keys, `rows` of them at once. Nothing here commits."""

    segments: Segments
    rows: int
    tombstones: bool
    """Whether deletions are stored."""

    def look_up(
        self, connection: duckdb.DuckDBPyConnection, keys: pa.RecordBatch, most_bytes: int | None
    ) -> tuple[Found, LookupResult]:
        """The entries of these stored keys, with stored rows; of the first keys only, if more have too many bytes."""
        if most_bytes is not None and self.segments.nested and keys.num_rows > 1:
            # Lists and structs come with their rows, however large, so that all would be read before any is left out.
            sizes = self.segments.heads(connection, keys)["size"]
            keys = keys.slice(0, max(1, _fitting(_reached(sizes), most_bytes)))
        found: list[pa.Table] = []
        count = size = 0
        for begin in range(0, max(1, keys.num_rows), self.rows):
            part = self.segments.entries(connection, keys.slice(begin, self.rows))
            reached = size + _reached(part["size"])
            if most_bytes is not None:
                part = part.slice(0, max(_fitting(reached, most_bytes), 0 if count else 1))
            found.append(self.segments.whole(connection, part))
            count += part.num_rows
            if count < min(begin + self.rows, keys.num_rows):
                break
            size = int(reached[-1]) if count else 0
        table = pa.concat_tables(found)
        rows = [name for name in table.schema.names if name.startswith(ROW)]
        entries = Found(table.select(ENTRIES.names).cast(ENTRIES), table.select(rows))
        return entries, LookupResult(keys.slice(0, count), table.select(_HEADS))

    def write(
        self, connection: duckdb.DuckDBPyConnection, given: StoredUpdates, seq: int, looked_up: LookupResult | None
    ) -> tuple[PutStats, int]:
        """Writes the updates that are later than what there is, numbered from `seq` on; also returns the next number.

        `looked_up` was found in the state as it still stands, and spares a look-up if it is of the same keys.
        """
        last = _last_of_each(connection, given)
        total = PutStats(puts=len(given), stale=len(given) - len(last))
        known = None
        if looked_up is not None and len(last) == len(given) and looked_up.keys.equals(given.keys):
            known = looked_up.heads
        for begin in range(0, len(last), self.rows):
            part = given.of_lines(last[begin : begin + self.rows])
            old = self.segments.heads(connection, part.keys) if known is None else known.slice(begin, self.rows)
            stats, seq = self._write_chunk(connection, part, old, seq)
            total = _sum(total, stats)
        return total, seq

    def _write_chunk(
        self, connection: duckdb.DuckDBPyConnection, given: StoredUpdates, old: pa.Table, seq: int
    ) -> tuple[PutStats, int]:
        """Writes updates of different keys, whose entries so far are `old`, in the columns of `LookupResult.heads`."""
        later = _later(given.heads, old)
        stays = later if self.tombstones else later & given.heads["present"].to_numpy()
        written = given.of_lines(np.flatnonzero(stays))
        self.segments.bury(connection, old.select(["segment", "seq", "size"]).filter(pa.array(later)).drop_null())
        self.segments.insert(connection, _numbered(written, seq))
        return _stats(given, later, stays, old), seq + len(written)


def _reached(sizes: Column) -> Numbers:
    """For each entry, how many bytes it and those before it have; a null has none."""
    return np.cumsum(sizes.fill_null(pa.scalar(0)).to_numpy())


def _fitting(reached: Numbers, most_bytes: int) -> int:
    return int(np.searchsorted(reached, most_bytes, side="right"))


def _last_of_each(connection: duckdb.DuckDBPyConnection, given: StoredUpdates) -> Numbers:
    """The places, ascending, of the last update of each key; of several with one order the first counts as the last."""
    if any(map(_distinct, given.keys.columns)):
        return np.arange(len(given))
    orders = [given.heads["order_key"], given.heads["order_tie"], pa.array(np.arange(len(given)), pa.int64())]
    names = given.keys.schema.names
    table = pa.table([*given.keys.columns, *orders], names=[*names, "order_key", "order_tie", "nth"])
    last = "arg_max(nth, row(order_key, order_tie, -nth))"
    found = found_with(connection, table, f"SELECT {last} AS nth FROM given GROUP BY {', '.join(names)} ORDER BY nth")
    places: Numbers = found["nth"].to_numpy()
    return places


def _distinct(column: Array) -> bool:
    """Whether it is known that no two of these values are equal: a stream gives each key once in a batch, and to ask
    DuckDB for the last of each takes a sixth of what a small batch takes here.
    """
    return not pt.is_nested(column.type) and len(column) == pc.count_distinct(column).as_py()


def _later(new: pa.Table, old: pa.Table) -> Mask:
    """Which updates are later than the entries beside them; any is later than no entry, and than one without order."""
    key, tie = new["order_key"].to_numpy(), new["order_tie"].to_numpy()
    old_key, old_tie = (_filled(old[name], 0) for name in ("order_key", "order_tie"))
    unordered = old["order_key"].is_null().to_numpy()
    return np.asarray(unordered | (key > old_key) | ((key == old_key) & (tie > old_tie)), np.bool_)


def _filled(column: Column, value: object) -> Any:
    return column.fill_null(pa.scalar(value, column.type)).to_numpy()


def _numbered(written: StoredUpdates, seq: int) -> pa.Table:
    """What `Segments.insert` takes, numbered from `seq` on."""
    numbers = pa.array(np.arange(seq, seq + len(written)))
    names = [*written.keys.schema.names, *NUMBERED, *written.rows.schema.names]
    columns = [
        *written.keys.columns,
        numbers,
        *written.heads.columns,
        pa.array(written.sizes),
        *written.rows.columns,
    ]
    return pa.table(columns, names=names)


def _stats(given: StoredUpdates, later: Mask, stays: Mask, old: pa.Table) -> PutStats:
    before, tombstone = _filled(old["present"], False), ~_filled(old["present"], True)
    after = given.heads["present"].to_numpy()
    sizes = np.where(stays, given.sizes, 0)

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
