"""Changes between two epochs, kept from the search for a batch's end until it is committed or another is planned."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa
from pyarrow import ipc

from backfill.upstream.temporary import explaining_temporary_folder

IN_MEMORY: Final = 16 << 20
"""Bytes above which a spool goes on in a file, so that one huge transaction does not live in the driver's memory."""

_NOT_KEPT: Final = "changes cannot be kept"


class Spool:
    """Record batches of one schema: written once, then read any number of times, in order."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._held: list[pa.RecordBatch] = []
        self._size = 0
        self._is_closed = False
        self._file: Any = None  # a temporary file
        self._writer: ipc.RecordBatchStreamWriter | None = None
        self.row_count = 0

    def add(self, batch: pa.RecordBatch) -> None:
        with explaining_temporary_folder(_NOT_KEPT):
            self._add(batch)

    def _add(self, batch: pa.RecordBatch) -> None:
        self.row_count += batch.num_rows
        if self._writer is not None:
            self._writer.write_batch(batch)
            return
        self._held.append(batch)
        self._size += batch.nbytes
        if self._size > IN_MEMORY:
            self._file = tempfile.TemporaryFile(prefix="backfill-")  # noqa: SIM115 - lives as long as the spool
            self._writer = ipc.new_stream(self._file, self._schema)
            for earlier in self._held:
                self._writer.write_batch(earlier)
            self._held = []

    def finish(self) -> None:
        """Writes what is not in the file yet, so that reading writes nothing."""
        if self._writer is not None:
            with explaining_temporary_folder(_NOT_KEPT):
                self._writer.close()
                self._file.flush()
            self._writer = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        if self._is_closed:
            raise RuntimeError("the spool is closed; it would seem to have no changes")
        if self._file is None:
            yield from self._held
            return
        self._file.seek(0)
        with ipc.open_stream(self._file) as reader:
            yield from reader

    def close(self) -> None:
        self._is_closed = True
        if self._file is not None:
            with suppress(OSError):  # about what is not written yet, which nobody wants any more
                self._file.close()
        self._held = []
