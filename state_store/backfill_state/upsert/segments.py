"""The entries of a `DuckDBUpsertState`: segments that are only ever added to, found by a join.

An entry is appended to the newest segment with the next number, `seq`; of several entries of a key the one with the
greatest number counts, and the others are noted as dead. A full segment is cleaned if at least half of it is dead, by
entries or by bytes; any other if three quarters are, and these are many: what lives is appended anew, and the table is
dropped. A batch cleans one segment, and more only while over half of all is dead: so it waits for one of
`SEGMENT_ENTRIES` or for about as much as it has replaced itself, and the file has room for twice what lives and a few
segments. Long texts and blobs lie in a table beside the segment: `long_cells` says why.

Why not the obvious ways, in DuckDB 2.0:

- Deleting what is replaced: two batches of 100 thousand deletes all over a table of 50 million filled 512 MB of memory,
  which only a checkpoint gave back; and that took 10 seconds and wrote 970 MB.
- An index: joins were no faster for it, and writing was 20 times as slow at 10 million keys.
- A table sorted by the key's hash: 100 thousand keys lie in all of its blocks anyhow.
- Sorting a segment once, when it is full: its 4 million entries were searched in 0.018 core-seconds instead of 0.031,
  which is 0.15 less for a look-up at 50 million keys. But writing it anew in order took 7.6, and that is 0.18 for each
  100 thousand entries written.
- Parts of the state by the key's hash, each searched for its part of the keys: a twelfth of the keys were searched for
  no faster than all of them (0.017 and 0.021 core-seconds a segment).
- One query over all segments, larger lists of keys pushed into the scan (`dynamic_or_filter_threshold`), reading ahead
  of the scan, strings left packed (`enable_fsst_vectors`), a fixed block of memory: as fast, or slower.
- Blocks of 16 kB, so that less is read around each row: the file was half as large again, and a look-up took twice as
  long at 50 million keys, from the disk as well as from the system's memory. So it did with the wide column alone in a
  file of such blocks: 1.9 core-seconds instead of 1.0.
- Rows fetched by `rowid`, in a step of their own: the same blocks are read, and it took a tenth longer.
- Strings stored as they are: nothing to unpack, but 1.3 times as much to read, and as fast at 10 million keys.
- A `probe` of 32 bits: 0.19 core-seconds instead of 0.20 at 25 million keys.
- Rows in files of our own, each read by itself, and in DuckDB only where they are (tried whole, with checksums, crashes
  and cleaning): 100 thousand scattered keys took 0.64 s at 10 million keys where this takes 0.35, because one thread
  did the work of two; 0.6 to 1.1 core-seconds at 50 million; and the files were twice as large. What was left to grow
  was finding the places. Sorted arrays of 50 million found as many in 0.04 core-seconds if there was one of them, in
  0.16 if there were twelve.

A look-up is a semi-join on one integer: the key itself where it is a single integer as stored (a date and an instant
are), else `probe`, the lower half of the MD5 of the key's text. Only what it finds is compared by the whole key.
DuckDB builds the join's table from the batch, and lets the segments stream past it: first that one column, and of the
others only those vectors in which something was found. A row group is not read at all where its smallest and largest
integers lie outside of the batch's range, so that changes to recent keys cost the same in any state.

DuckDB picks single rows out of packed strings only where it has read the column from the file. What it wrote itself
since it opened the file, it unpacks by whole vectors: of 8.5 million keys just filled in, 100 thousand scattered ones
took 0.8 s, and 0.35 s when the file was opened anew. So the state opens it anew for each segment that it begins.

Keys from all over a large state cost more, the larger it is. Hardly a block of 256 kB has none of 100 thousand keys, so
a `multi_get` reads what memory does not hold of the file: 3.5 GB at 50 million keys of 100 bytes. Of 1.0 core-seconds
there (on a calmer machine than below), 0.25 find the keys, and 0.5 go into reading (copying from the system's memory
0.2, checksums 0.1) and fall away with memory for all of the file. Where the system has to read it from the disk, the
disk decides: 4 to 11 seconds were seen (8 threads instead of 2: 1.5 times as fast). Core-seconds of a batch of 100
thousand keys, the least and the median of 8 on two cores that others kept busy; `benchmarks/upsert.py` measures it:

    million keys in the state               1           10            50
    multi_get, the newest         0.15 - 0.45  0.16 - 0.46   0.24 - 0.49
    multi_get, anywhere           0.20 - 0.45  0.47 - 0.63   1.17 - 1.32
    multi_put of these, newest    0.12 - 0.14  0.14 - 0.16   0.12 - 0.14
    multi_put of these, anywhere  0.10 - 0.15  0.14 - 0.18   0.16 - 0.22
    multi_put alone, anywhere     0.19 - 0.29  0.30 - 0.37   0.57 - 0.61

Leaving out dead entries takes a fifth of a look-up where a third of all entries are dead, and nothing where few are.

The cost is that of a look-up, not of a key: at 50 million, 100 thousand keys took 1.0 core-seconds, 200 thousand 1.2,
400 thousand 1.4 and 800 thousand 1.9; one thousand took 0.35, of which 0.15 go over the column that is searched. Hence
callers ask for many keys at once, and a `multi_put` goes by what the `multi_get` before it has found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from backfill_state.duckdb_errors import UnreadableError
from backfill_state.given import found_with, given_to, run
from backfill_state.upsert.columns import Field
from backfill_state.upsert.duckdb_tables import LONG_CELLS, column_of
from backfill_state.upsert.long_cells import LONG, cut, mended
from backfill_state.upsert.state import ENTRIES, UpsertLayout
from backfill_state.upsert.stored import KEY, ROW, stored_schema

SEGMENT_ENTRIES: Final = 1 << 22
SEGMENT_BYTES: Final = 1 << 30
"""From how many entries or bytes on a segment is full: each segment costs a query per look-up, and the largest decides
the pauses.
"""

_MANY_DEAD: Final = 16
"""Dead entries are many if they are at least what fills a segment, divided by this. A look-up of a key reads all its
entries, the dead ones too: when only full segments were cleaned, batches that all wrote the same 20,000 keys took 2.4 s
in the end, and 0.05 s with this. (With half of them dead instead of three quarters, 400 thousand keys took twice as
long to write.)
"""

NUMBERED: Final = ("seq", *ENTRIES.names)
"""The columns of an entry beside its key and its row."""

_READ_AT_ONCE: Final = 64 << 20
"""Entries of about so many bytes get their long cells by one query."""


class Segments:
    """The SQL of the entries, for one layout. Nothing here commits."""

    def __init__(self, layout: UpsertLayout, *, full: int, full_bytes: int) -> None:
        key, row = stored_schema(layout.key, KEY), stored_schema(layout.row, ROW)
        self._full, self._full_bytes = full, full_bytes
        self.begun = 0
        """How many segments this has begun, those of a transaction that was rolled back too."""

        # Lists of numbers too: those with a null stay in their rows, as all do in files of earlier versions.
        self.nested = any(pt.is_nested(field.type) for field in row)
        self._key, self._row = ", ".join(key.names), row.names
        self._columns = ", ".join([*key.names, *NUMBERED, *row.names])
        whole = len(key) == 1 and pt.is_integer(key.field(0).type)
        self._probe = f"{KEY}0" if whole else "probe"
        hashed = f", md5_number_lower(concat_ws('/', {', '.join(map(_text, key))})) AS probe"
        self._and_probe = "" if whole else hashed
        keys = [f"{column_of(field)} NOT NULL" for field in key]
        self._cell_columns = [column_of(field) for field in row]
        numbers = ["seq BIGINT NOT NULL", "order_key BIGINT", "order_tie BIGINT"]
        heads = [*numbers, "present BOOLEAN NOT NULL", "size BIGINT NOT NULL"]
        probe = [] if whole else ["probe UBIGINT NOT NULL"]
        self._entries = ", ".join([*probe, *keys, *heads, *self._cell_columns])

    def create(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Drops whatever there is, and begins with one empty segment."""
        old = _noted(connection)
        # DuckDB makes no table under a name that the same transaction has dropped.
        self._begin(connection, max(old, default=0) + 1)
        for segment in old:
            self._drop(connection, segment)

    def extend(self, connection: duckdb.DuckDBPyConnection, count: int) -> None:
        """Adds the row's columns after the first `count`, null in the entries there are."""
        for segment in self._all(connection):
            extend(connection, f"entries_{segment}", self._cell_columns[count:])

    # -- looking up ------------------------------------------------------------------------------------------------

    def heads(self, connection: duckdb.DuckDBPyConnection, keys: pa.RecordBatch) -> pa.Table:
        """`| segment | seq | order_key | order_tie | present | size |` of each key's entry; nulls where it has none."""
        return self._look_up(connection, keys, [])

    def entries(self, connection: duckdb.DuckDBPyConnection, keys: pa.RecordBatch) -> pa.Table:
        """The same, and then the columns of the row without its long cells; see `whole`."""
        return self._look_up(connection, keys, self._row)

    def _look_up(self, connection: duckdb.DuckDBPyConnection, keys: pa.RecordBatch, row: Sequence[str]) -> pa.Table:
        places = pa.array(np.arange(keys.num_rows), pa.int64())
        given = pa.table([places, *keys.columns], names=["nth", *keys.schema.names])
        run(connection, given, f"CREATE OR REPLACE TEMP TABLE asked AS SELECT *{self._and_probe} FROM given")
        columns = ", ".join([*NUMBERED, *row])
        # The dead are left out by number: where a deletion has left no entry, none of a greater number supersedes them.
        found = [
            connection.sql(f"""
                WITH near AS MATERIALIZED (
                    SELECT {self._key}, {columns} FROM entries_{segment}
                    WHERE {self._probe} IN (SELECT {self._probe} FROM asked)
                )
                SELECT asked.nth, {segment}::BIGINT AS segment, near.* EXCLUDE ({self._key})
                FROM asked JOIN near USING ({self._key}) ANTI JOIN dead_{segment} USING (seq)
            """).to_arrow_table()
            for segment in self._all(connection)
        ]
        return _aligned(pa.concat_tables(found), keys.num_rows)

    def whole(self, connection: duckdb.DuckDBPyConnection, found: pa.Table) -> pa.Table:
        """What `entries` gave, one line for each entry, with its long cells."""
        sizes = found["size"].fill_null(pa.scalar(0)).to_numpy()
        if sizes.max(initial=0) <= LONG:
            return found
        part = np.cumsum(sizes) // _READ_AT_ONCE
        starts = [0, *(np.flatnonzero(np.diff(part)) + 1).tolist()]
        return pa.concat_tables(
            self._mended(connection, found.slice(start, end - start))
            for start, end in pairwise([*starts, found.num_rows])
        )

    def _mended(self, connection: duckdb.DuckDBPyConnection, found: pa.Table) -> pa.Table:
        long = found.select(["segment", "seq"]).filter(pc.greater(found["size"], pa.scalar(LONG)))
        pieces = [
            found_with(connection, here, f"SELECT * FROM long_{segment} WHERE seq IN (SELECT seq FROM given)")
            for segment, here in _by_segment(long)
        ]
        return mended(found, self._row, pa.concat_tables(pieces)) if any(len(item) for item in pieces) else found

    # -- writing ---------------------------------------------------------------------------------------------------

    def bury(self, connection: duckdb.DuckDBPyConnection, replaced: pa.Table) -> None:
        """Notes the entries `| segment | seq | size |` as dead."""
        for segment, here in _by_segment(replaced):
            run(connection, here, f"INSERT INTO dead_{segment} SELECT seq FROM given")
            connection.execute(
                "UPDATE segments SET dead = dead + ?, dead_size = dead_size + ? WHERE segment = ?",
                [here.num_rows, pc.sum(here["size"], min_count=0).as_py(), segment],
            )

    def insert(self, connection: duckdb.DuckDBPyConnection, entries: pa.Table) -> None:
        """Adds entries `| k0 ... | seq | order_key | order_tie | present | size | v0 ... |`."""
        if entries.num_rows:
            rows, pieces = cut(entries, self._row, entries["seq"].to_numpy())
            size = pc.sum(entries["size"], min_count=0).as_py()
            with given_to(connection, rows):
                segment = self._room(connection)
                self._add(connection, segment, "given", entries.num_rows, size)
            if pieces.num_rows:
                run(connection, pieces, f"INSERT INTO long_{segment} SELECT * FROM given")

    def clean(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Cleans the segment of which the largest part is dead, and further ones while more than half of all is."""
        mostly_dead = "SELECT (sum(dead) * 2 > sum(entries) OR sum(dead_size) * 2 > sum(size))::INTEGER FROM segments"
        while self._clean_worst(connection) and number(connection, mostly_dead):
            pass

    def _clean_worst(self, connection: duckdb.DuckDBPyConnection) -> bool:
        """Cleans the segment of which the largest part is dead, if any is to be cleaned. Returns whether one was."""
        found = connection.execute(
            "SELECT segment, entries - dead, greatest(dead / entries, dead_size / size) AS part FROM segments "
            "WHERE (part >= 0.5 AND (entries >= ? OR size >= ?)) OR (part >= 0.75 AND (dead >= ? OR dead_size >= ?)) "
            "ORDER BY part DESC, segment LIMIT 1",
            [self._full, self._full_bytes, *(-(-full // _MANY_DEAD) for full in (self._full, self._full_bytes))],
        ).fetchone()
        if found is None:
            return False
        segment, living, _ = found
        if self._room(connection) == segment:
            self._begin(connection, segment + 1)
        if living:
            entries, pieces = (
                f"{table}_{segment} ANTI JOIN dead_{segment} USING (seq)" for table in ("entries", "long")
            )
            self.take_in(connection, entries, living, f"SELECT * FROM {pieces}")
        self._drop(connection, segment)
        return True

    def shares(self, connection: duckdb.DuckDBPyConnection, count: int, size: int) -> Iterator[tuple[int, int]]:
        """Cuts so many entries of so many bytes into shares that fill a segment each, but for the last.

        Each is to be taken in before the next one is asked for, and gets a segment of its own: where rows are not all
        of one size, a share may have a little less than fills one, and the next would come on top.
        """
        if count:
            share = min(self._full, -(-count * self._full_bytes // size))
            for begin in range(0, count, share):
                if begin:
                    self._begin(connection, max(self._all(connection)) + 1)
                yield begin, min(count, begin + share)

    def take_in(self, connection: duckdb.DuckDBPyConnection, source: str, count: int, pieces: str) -> None:
        """Adds entries that are in the file already, given in SQL, with the pieces of their long cells."""
        room = self._room(connection)
        self._add(connection, room, source, count, number(connection, f"SELECT sum(size)::BIGINT FROM {source}"))
        connection.execute(f"INSERT INTO long_{room} {pieces}")

    def _drop(self, connection: duckdb.DuckDBPyConnection, segment: int) -> None:
        for table in ("entries", "dead", "long"):
            connection.execute(f"DROP TABLE {table}_{segment}")
        connection.execute("DELETE FROM segments WHERE segment = ?", [segment])

    def _room(self, connection: duckdb.DuckDBPyConnection) -> int:
        """The newest segment, or a new one if that is full."""
        (newest, entries, size) = connection.execute(
            "SELECT segment, entries, size FROM segments ORDER BY segment DESC LIMIT 1"
        ).fetchone() or (0, self._full, 0)
        if entries < self._full and size < self._full_bytes:
            return int(newest)
        return self._begin(connection, int(newest) + 1)

    def _begin(self, connection: duckdb.DuckDBPyConnection, segment: int) -> int:
        connection.execute(f"CREATE TABLE entries_{segment} ({self._entries})")
        connection.execute(f"CREATE TABLE dead_{segment} (seq BIGINT NOT NULL)")
        connection.execute(f"CREATE TABLE long_{segment} ({LONG_CELLS})")
        connection.execute("INSERT INTO segments VALUES (?, 0, 0, 0, 0)", [segment])
        self.begun += 1
        return segment

    def _add(self, connection: duckdb.DuckDBPyConnection, segment: int, source: str, count: int, size: int) -> None:
        connection.execute(
            f"INSERT INTO entries_{segment} BY NAME SELECT {self._columns}{self._and_probe} FROM {source}"
        )
        connection.execute(
            "UPDATE segments SET entries = entries + ?, size = size + ? WHERE segment = ?", [count, size, segment]
        )

    def _all(self, connection: duckdb.DuckDBPyConnection) -> list[int]:
        """The numbers of all segments, ascending; there is at least one."""
        segments = _noted(connection)
        if not segments:
            raise UnreadableError("its table `segments` has no rows")
        return segments


def _noted(connection: duckdb.DuckDBPyConnection) -> list[int]:
    return [segment for (segment,) in connection.execute("SELECT segment FROM segments ORDER BY segment").fetchall()]


def extend(connection: duckdb.DuckDBPyConnection, table: str, columns: Sequence[str]) -> None:
    """Adds columns, given in DDL, to a table."""
    for column in columns:
        connection.execute(f"ALTER TABLE {table} ADD COLUMN {column}")


def _aligned(found: pa.Table, count: int) -> pa.Table:
    """A line for each of `count` keys, in order: what was found for it (`nth`), or nulls."""
    places = np.full(count, -1, np.int64)
    places[found["nth"].to_numpy()] = np.arange(found.num_rows)
    return found.drop_columns(["nth"]).take(pa.array(places, pa.int64(), mask=places < 0))


def _by_segment(entries: pa.Table) -> list[tuple[int, pa.Table]]:
    """The lines of each segment, by their column `segment`."""
    segments: list[Any] = entries["segment"].unique().to_pylist()  # A few numbers, not rows.
    return [
        (number, entries.filter(pc.equal(entries["segment"], pa.scalar(number, pa.int64())))) for number in segments
    ]


def number(connection: duckdb.DuckDBPyConnection, sql: str) -> int:
    [(number,)] = connection.execute(sql).fetchall()
    return int(number)


def _text(field: Field) -> str:
    """The column as text that all releases of DuckDB write alike; keys that share a text cost a comparison."""
    return f"hex({field.name})" if pt.is_binary(field.type) else f"{field.name}::VARCHAR"
