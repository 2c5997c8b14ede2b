"""What an upsert state is, and the laws every one of them obeys."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from backfill_state.closing import Closable
from backfill_state.errors import StateLayoutError
from backfill_state.upsert.codec import stored_type
from backfill_state.upsert.columns import Column, Field, Numbers

ORDER: Final = pa.schema([pa.field("order_key", pa.int64()), pa.field("order_tie", pa.int64())])
HEADS: Final = pa.schema([*ORDER, pa.field("present", pa.bool_())])
ENTRIES: Final = pa.schema([*HEADS, pa.field("size", pa.int64())])


@dataclass(frozen=True)
class UpsertLayout:
    """Whose state it is, and the columns of its keys and rows. Equal layouts may share a state, and a layout may go on
    with the state of another that it `extends`; no others.

    A row may repeat the columns of the key or leave them out. Nullability and metadata are dropped.
    """

    stream_id: str
    key: pa.Schema
    row: pa.Schema

    def __post_init__(self) -> None:
        if not self.key.names or not self.row.names:
            raise StateLayoutError("an upsert state needs a key and a row of at least one column each")
        for name in ("key", "row"):
            plain = pa.schema([pa.field(item.name, item.type) for item in getattr(self, name)])
            object.__setattr__(self, name, plain)
            for item in plain:
                _require_storable(item, is_key=name == "key")

    def extends(self, other: UpsertLayout) -> bool:
        """Whether this is the other layout with further columns at the end of a row, or with none."""
        begin = pa.schema([self.row.field(at) for at in range(min(len(self.row), len(other.row)))])
        return replace(self, row=begin) == other


def _require_storable(column: Field, *, is_key: bool) -> None:
    stored = stored_type(column.name, column.type)
    if is_key and pt.is_nested(stored):
        raise StateLayoutError(f"key column {column.name!r} has type {column.type}; a key has no lists nor structs")
    written = pa.schema([column])
    if pa.ipc.read_schema(written.serialize()) != written:
        # As with an extension that is not registered: a file that has it would have other columns when read.
        raise StateLayoutError(
            f"column {column.name!r} has type {column.type}, which Arrow does not read back as it writes it; register "
            "the extension type, or cast the column to its storage type"
        )


@dataclass(frozen=True)
class Updates:
    """The new values of some keys: three tables side by side, a line each for one update.

    `keys` has the key's columns, none of them null. `heads` is `| order_key int64 | order_tie int64 | present bool |`,
    none of them null either: the two decide which of several updates of a key is the last, and where `present` is
    false the key is deleted. `rows` has the row's columns; those of a deletion are not looked at.
    """

    keys: pa.Table
    heads: pa.Table
    rows: pa.Table


@dataclass(frozen=True)
class GetStats:
    """What a `multi_get` did."""

    gets: int = 0
    """Keys asked for, duplicates included."""

    found: int = 0
    """Keys for which there was an entry, be it a row or a tombstone."""

    size: int = 0
    """Bytes of the entries found."""


@dataclass(frozen=True)
class PutStats:
    """What a `multi_put` did, net: each key counts once, whatever it went through within the call."""

    puts: int = 0
    """Updates given."""

    stale: int = 0
    """Updates dropped, because there was a later one of their key, in the state or in the call."""

    size: int = 0
    """Bytes of the entries written."""

    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    """Keys whose row appeared, was replaced, and was removed."""

    values_diff: int = 0
    tombstones_diff: int = 0
    size_diff: int = 0
    """By how much the totals grew; each may be negative."""


@dataclass(frozen=True)
class MergeStats:
    """What a `multi_merge` did."""

    merges: int = 0
    """Lines of output given."""

    size: int = 0
    """Bytes of their keys and rows."""

    diff: int = 0
    """The sum of their diffs."""


@dataclass(frozen=True)
class ConsolidateStats:
    """What a `consolidate_chunk` did: a merge, and what the totals grew by if it was the last."""

    merge: MergeStats = MergeStats()
    values_diff: int = 0
    size_diff: int = 0


@dataclass(frozen=True)
class Totals:
    """How much there is: keys with a row, keys that are tombstones, and the bytes of all entries."""

    values: int = 0
    tombstones: int = 0
    size: int = 0

    @property
    def average(self) -> int:
        """Bytes of an entry, rounded up; at least 1."""
        return max(1, -(-self.size // max(1, self.values + self.tombstones)))


@dataclass(frozen=True)
class Found:
    """What was found, a line for each key asked for and in that order, or for the first of them.

    `entries` is `| order_key | order_tie | present | size |`: all null where there is no entry; `present` is false
    for a tombstone; the order is null for a row that came from consolidation. `rows` has the row's columns, null
    where there is no row.
    """

    entries: pa.Table
    rows: pa.Table

    @property
    def stats(self) -> GetStats:
        sizes = self.entries["size"]
        return GetStats(len(sizes), len(sizes) - sizes.null_count, pc.sum(sizes, min_count=0).as_py())

    def of_keys(self, places: Numbers) -> Found:
        """What was found for the keys at these places."""
        if len(places) == self.entries.num_rows:
            return self
        at = pa.array(places, pa.int64())
        return Found(self.entries.take(at), self.rows.take(at))


class UpsertState(Closable, Protocol):
    """A durable map from each key to its last row and the order of the update that brought it.

    Laws, of every state:

    1. Writing happens in a `batch`, and takes effect at its end together with the batch's token, wholly or not at
       all, also if the process is killed. Inside of the block its own writes are seen. A batch that ends with an
       error has stored nothing, unless the error comes after that end, as a Ctrl-C or a checkpoint's error may: the
       token tells.
    2. The token of the last batch is known. The same batch again is recognised by it: its block writes nothing, its
       statistics are all 0, and totals stay as they are. It reads what stands now, its own writes included.
    3. An update takes effect exactly if it is later than the entry of its key: by `order_key`, then by `order_tie`.
       Several updates of one key in a call are as good as one call each, in the order of their lines, except
       that statistics are those of the call as a whole.
    4. A deletion leaves a tombstone that keeps the order, so that an older update that comes late stays without
       effect. Deleting an absent key does so as well. A state that was told to keep no tombstones forgets the key
       instead, for whoever gives updates in their order and has keys that come and go.
    5. Keys are one if all their columns are equal bit by bit; rows come back as they went in, bit by bit. (What lies
       hidden under a null is not part of a value.)
    6. Sizes and statistics follow from the data alone, and are exact: the totals are the sums of the differences.

    And of consolidation, which makes a state anew from what it once gave out:

    7. An empty state takes lines of output by `consolidate_chunk`: a key, a row, and +1 where the row was added or -1
       where it was retracted, in any order, over any number of chunks and batches. From the first until the completed
       one, reading and putting is an error.
    8. Completing adds up the lines of equal key and row. Each sum has to be 0 or 1, and each key may have one row at
       most, or it is a `ConsolidationError` and the completing batch has stored nothing. What is left is the state,
       without an order: any update is later.

    One thread at a time. A state may be used again after `close`; leaving a `with` block closes it.
    """

    @property
    def layout(self) -> UpsertLayout: ...

    def token(self) -> str | None:
        """The token of the last batch; None before the first."""
        ...

    def totals(self) -> Totals:
        """How much the state holds; nothing, while it is being consolidated."""
        ...

    def file_bytes(self) -> int:
        """How many bytes the state's file and its log have; 0 where there is none. A batch counts once it is committed.

        Unlike sizes and statistics, this depends on the store. It opens nothing.
        """
        ...

    def memory_bytes(self) -> int:
        """How many bytes of the memory that it may take the state has taken; this depends on the store too."""
        ...

    def consolidating(self) -> bool:
        """Whether there is output that waits for the rest."""
        ...

    def batch(self, token: str) -> AbstractContextManager[bool]:
        """A block whose writes take effect together. Gives it whether they are new; see laws 1 and 2."""
        ...

    def multi_get(self, keys: pa.Table, *, most_bytes: int | None = None) -> Found:
        """The entries of these keys; a key may be asked for more than once. In a batch or outside of one.

        With `most_bytes`, maybe only those of the first keys: of one at least, and of more as long as their entries
        together have no more bytes than that. The number of lines is that of these keys.
        """
        ...

    def multi_put(self, updates: Updates) -> PutStats:
        """Writes the later of these updates; see laws 3 and 4."""
        ...

    def multi_merge(self, keys: pa.Table, rows: pa.Table, diffs: Column) -> MergeStats:
        """Adds lines of output to a state that is being consolidated, or to an empty one; see law 7."""
        ...

    def consolidate_chunk(self, keys: pa.Table, rows: pa.Table, diffs: Column, *, completed: bool) -> ConsolidateStats:
        """`multi_merge`, and if this was the last of the output, completes it; see law 8."""
        ...

    def clear(self) -> None:
        """Forgets all entries, tombstones too, as part of the batch: any update that comes afterwards takes effect.

        A replayed batch clears nothing.
        """
        ...

    def reset(self) -> None:
        """Forgets everything, the token too. Not in a batch."""
        ...
