"""Changes on their way to readers: inline in the task where they are few, in staged files where not."""

from __future__ import annotations

from collections.abc import Iterable
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
    earlier attempt at the same batch are replaced by equal ones.
    """
    packed = _Packed(schema, files)
    packed.take(batches)
    if packed.count == 0 and packed.size <= INLINE_BYTES:
        return _inline(packed.held, schema)
    return staged(files, packed.finish(), readers)


def stage(batches: Iterable[pa.RecordBatch], schema: pa.Schema, files: BatchFiles) -> int:
    """As `pack`, but in files however few rows there are, for rows that cannot be made again. Returns the number of
    files.
    """
    packed = _Packed(schema, files)
    packed.take(batches)
    return packed.finish()


def staged(files: BatchFiles, count: int, readers: int, added: Added = NOTHING_ADDED) -> tuple[StagedChanges, ...]:
    """This many files of changes, over at most `readers` parts; they may lack columns that were added since."""
    names = [_name(at) for at in range(count)]
    parts = min(readers, count)
    return tuple(StagedChanges(files, tuple(names[part::parts]), added) for part in range(parts))


def _name(at: int) -> str:
    return f"changes-{at}.arrow"


class _Packed:
    """Rows on their way to staged files, of which memory holds one file's worth."""

    def __init__(self, schema: pa.Schema, files: BatchFiles) -> None:
        self._schema = schema
        self._files = files
        self.held: list[pa.RecordBatch] = []
        self.size = 0
        self.count = 0

    def take(self, batches: Iterable[pa.RecordBatch]) -> None:
        for batch in batches:
            if batch.num_rows:
                self.held.append(batch)
                self.size += batch.nbytes
            if self.size >= FILE_BYTES:
                self._write()

    def _write(self) -> None:
        self._files.write(_name(self.count), self._schema, self.held)
        self.held, self.size, self.count = [], 0, self.count + 1

    def finish(self) -> int:
        """Writes what is left. Returns the number of files."""
        if self.held:
            self._write()
        return self.count


def _inline(held: list[pa.RecordBatch], schema: pa.Schema) -> tuple[InlineChanges, ...]:
    if not held:
        return ()
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, schema) as writer:
        for batch in held:
            writer.write_batch(batch)
    return (InlineChanges(sink.getvalue().to_pybytes()),)
