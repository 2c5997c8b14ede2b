"""Rows in the order of some of their columns: few rows in memory, many by sorted runs on disk that are merged.

    rows      5 1 | 8 2 | 4 7 | 3 6
    runs      1 2 5 8        3 4 6 7         each sorted in memory, and cut into blocks on disk
    blocks    1 2 | 5 8      3 4 | 6 7
    merged    1 2            up to 2, the least of the last keys of the blocks at hand (2 and 4)
              3 4            up to 4, of 8 and 4
              5 6 7          up to 7, of 8 and 7
              8

Nothing that is in no block at hand comes before the least of these last keys. So what the blocks have up to it comes
next, and only that has to be put in order; at least one block is used up each time. All of it is Arrow's work on many
rows at once, and memory holds a block of each run. Where there are a great many runs, some at a time are merged into a
larger one first.

Not DuckDB, which sorts on disk as well: in 256 MB, and also in 1 GB, it ended with an error where rows had some
kilobytes (2.0: 200 thousand rows of 2 kB, 20 thousand of 50 kB).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import ipc

from backfill.arrow.batches import as_one_batch, coalesced, size_of
from backfill.arrow.order import sorting_by, within
from backfill.upstream.temporary import explaining_temporary_folder

RUN_BYTES: Final = 32 << 20
"""About how much is sorted in memory: all, where there is no more than that, else a run."""

BLOCK_BYTES: Final = 512 << 10
"""About how much of a run is read from disk at a time."""

COLUMN_BYTES: Final = 8 << 10
"""About how many bytes for each column a batch that comes from disk has at least. What a batch costs grows with its
columns, and a block has only some tens of rows with a thousand columns.
"""

MOST_RUNS: Final = 64
"""How many runs are merged at once: each has a block in memory, and each step takes a look at all of them."""

_NOT_SORTED: Final = "rows of a large commit or chunk cannot be sorted"

BATCH_ROWS: Final = 32_768
BATCH_BYTES: Final = 8 << 20
"""The batches that come out have no more rows, nor more than about so many bytes, except for single larger rows."""


def in_order(rows: Iterable[pa.RecordBatch], schema: pa.Schema, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows, which have this schema, in the order of these columns, of which none is a float or has nulls.

    Text and bytes compare by their bytes, everything else by value. StagingError where the temporary folder is full.
    """
    runs = _runs(rows, schema, columns)
    first, second = next(runs, None), next(runs, None)
    if first is None:
        return
    if second is None:
        yield from _cut(first, BATCH_ROWS, BATCH_BYTES)
        return
    with explaining_temporary_folder(_NOT_SORTED):
        temporary = tempfile.TemporaryDirectory(prefix="backfill-sort-")
    with temporary as folder:
        kept = _Runs(Path(folder), schema, columns)
        for run in chain([first, second], runs):
            kept.add(_cut(run, run.num_rows, BLOCK_BYTES))
        yield from coalesced(kept.merged(), BATCH_ROWS, min(BATCH_BYTES, COLUMN_BYTES * len(schema)))


def _runs(rows: Iterable[pa.RecordBatch], schema: pa.Schema, columns: Sequence[str]) -> Iterator[pa.Table]:
    """The rows in tables of about RUN_BYTES, each in order."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in rows:
        for part in _cut(pa.Table.from_batches([batch], schema), batch.num_rows, RUN_BYTES):
            held.append(part)
            size += size_of(part)
            if size > RUN_BYTES:
                yield _in_order_of_few(held, columns)
                held, size = [], 0
    if held:
        yield _in_order_of_few(held, columns)


def _in_order_of_few(batches: Sequence[pa.RecordBatch], columns: Sequence[str]) -> pa.Table:
    table = pa.Table.from_batches(batches)
    return table.sort_by(sorting_by(columns))


def _cut(table: pa.Table, most_rows: int, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """The table in batches, none of them empty."""
    if table.num_rows:
        whole = table.combine_chunks()
        row_bytes = max(1, sum(map(size_of, whole.to_batches())) // table.num_rows)
        yield from whole.to_batches(max(1, min(most_rows, most_bytes // row_bytes)))


class _Run:
    """Rows in order: a block of them at hand, the others on disk."""

    def __init__(self, file: Path, schema: pa.Schema, blocks: Iterable[pa.RecordBatch]) -> None:
        self._file = file
        self._read = 0
        with explaining_temporary_folder(_NOT_SORTED), ipc.new_file(str(file), schema) as writer:
            for block in blocks:
                writer.write_batch(block)
        self._block = self._next()

    def remove(self) -> None:
        """Removes the file of a run that is used up."""
        self._file.unlink()

    def _next(self) -> pa.RecordBatch | None:
        # Opened for each block, so that a run which is given up half-way leaves no file open.
        with (
            explaining_temporary_folder(_NOT_SORTED),
            pa.OSFile(str(self._file), "rb") as source,
            ipc.open_file(source) as reader,
        ):
            if self._read == reader.num_record_batches:
                return None
            self._read += 1
            return reader.get_batch(self._read - 1)

    def block(self) -> pa.RecordBatch | None:
        """The rows at hand, at least one; None where none is left."""
        if self._block is not None and not self._block.num_rows:
            self._block = self._next()
        return self._block

    def take(self, count: int) -> pa.RecordBatch:
        """The first `count` of the rows at hand, which are no longer at hand then."""
        if self._block is None:
            raise ValueError("the run is used up")
        taken, self._block = self._block.slice(0, count), self._block.slice(count)
        return taken


class _Runs:
    """All runs, in levels: MOST_RUNS of one level are merged into a run of the next one."""

    def __init__(self, folder: Path, schema: pa.Schema, columns: Sequence[str]) -> None:
        self._folder, self._schema, self._columns = folder, schema, columns
        self._count = 0
        self._levels: list[list[_Run]] = []

    def add(self, blocks: Iterable[pa.RecordBatch], level: int = 0) -> None:
        if level == len(self._levels):
            self._levels.append([])
        self._count += 1
        here = self._levels[level]
        here.append(_Run(self._folder / str(self._count), self._schema, blocks))
        if len(here) == MOST_RUNS:
            self._levels[level] = []
            self.add(_merged(here, self._columns, BLOCK_BYTES), level + 1)
            for run in here:
                run.remove()

    def merged(self) -> Iterator[pa.RecordBatch]:
        return _merged(list(chain.from_iterable(self._levels)), self._columns, BATCH_BYTES)


def _merged(runs: Sequence[_Run], columns: Sequence[str], most_bytes: int) -> Iterator[pa.RecordBatch]:
    names = list(columns)
    while blocks := [(run, block) for run in runs if (block := run.block()) is not None]:
        lasts = _together(block.select(names).slice(block.num_rows - 1) for _, block in blocks)
        bound = lasts.sort_by(sorting_by(names)).slice(0, 1)
        reached = within(_together(block.select(names).slice(0, 1) for _, block in blocks), None, bound)
        taken = [
            run.take(within(block.select(names), None, bound).true_count)
            for (run, block), reaches in zip(blocks, reached.to_pylist(), strict=True)
            if reaches
        ]
        found = pa.Table.from_batches(taken)
        yield from _cut(found if len(taken) == 1 else found.sort_by(sorting_by(names)), BATCH_ROWS, most_bytes)


def _together(keys: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
    return as_one_batch(pa.Table.from_batches(keys))
