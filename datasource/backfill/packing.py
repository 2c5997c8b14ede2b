"""Changes on their way to readers: inline in the task where they are few, in staged files where not."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa
from pyarrow import ipc

from backfill.handoff import InlineChanges, StagedChanges
from backfill.staging.batch_files import BatchFiles
from backfill.upstream.added import NOTHING_ADDED, Added

INLINE_BYTES: Final = 1 << 20
"""Changes up to this size travel in the task itself: Spark needs 20 ms and ten times the memory for each MB."""

FILE_BYTES: Final = 16 << 20
"""About how much of a larger amount goes into one staged file."""


def pack(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, files: BatchFiles, readers: int
) -> tuple[InlineChanges | StagedChanges, ...]:
    """Output rows as parts: inline where they are few, staged where not, over at most `readers` parts.

    Uses memory for about one file's worth of rows. The same batches make the same parts, and files left by an
    earlier attempt at the same batch are replaced by equal ones. With other columns, rows are cut elsewhere and files
    get other names: readers of that attempt, which may outlive its driver, must not get some files of each.
    """
    packed = _Packed(schema, files, made_again=True)
    packed.take(batches)
    if not packed.names and packed.size <= INLINE_BYTES:
        return _inline(packed.held, schema)
    return _spread(files, packed.finish(), readers)


def stage(batches: Iterable[pa.RecordBatch], schema: pa.Schema, files: BatchFiles) -> int:
    """As `pack`, but in files however few the rows, because they cannot be made again. Returns the number of files."""
    packed = _Packed(schema, files, made_again=False)
    packed.take(batches)
    return len(packed.finish())


def staged(files: BatchFiles, count: int, readers: int, added: Added = NOTHING_ADDED) -> tuple[StagedChanges, ...]:
    """The `count` files that `stage` wrote, over at most `readers` parts; they may lack columns `added` since."""
    return _spread(files, [_name(at) for at in range(count)], readers, added)


def _spread(
    files: BatchFiles, names: Sequence[str], readers: int, added: Added = NOTHING_ADDED
) -> tuple[StagedChanges, ...]:
    parts = min(readers, len(names))
    return tuple(StagedChanges(files, tuple(names[part::parts]), added) for part in range(parts))


def _name(at: int, cut: str = "") -> str:
    return f"changes-{at}{cut}.arrow"


class _Packed:
    """Rows on their way to staged files, of which memory holds one file's worth."""

    def __init__(self, schema: pa.Schema, files: BatchFiles, *, made_again: bool) -> None:
        """`made_again`: a batch that is run again makes the rows again. So the files need not last, and a file's name
        depends on its rows and their columns.
        """
        self._schema = schema
        self._files = files
        self._made_again = made_again
        self._written = 0
        self.held: list[pa.RecordBatch] = []
        self.size = 0
        self.names: list[str] = []

    def take(self, batches: Iterable[pa.RecordBatch]) -> None:
        for batch in batches:
            if batch.num_rows:
                self.held.append(batch)
                self.size += batch.nbytes
            if self.size >= FILE_BYTES:
                self._write()

    def _write(self) -> None:
        begin, self._written = self._written, self._written + sum(batch.num_rows for batch in self.held)
        content = f"{begin} {self._written} {self._schema}".encode()
        name = _name(len(self.names), f"-{zlib.crc32(content)}" if self._made_again else "")
        self._files.write(name, self._schema, self.held, lasts=not self._made_again)
        self.names.append(name)
        self.held, self.size = [], 0

    def finish(self) -> list[str]:
        """Writes what is left. Returns the names of the files."""
        if self.held:
            self._write()
        return self.names


def _inline(held: list[pa.RecordBatch], schema: pa.Schema) -> tuple[InlineChanges, ...]:
    if not held:
        return ()
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, schema) as writer:
        for batch in held:
            writer.write_batch(batch)
    return (InlineChanges(sink.getvalue().to_pybytes()),)
