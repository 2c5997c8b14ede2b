"""What the driver hands to a reader, and how the reader turns it into rows. Picklable and self-sufficient."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa
from pyarrow import ipc

from backfill.arrow.batches import in_columns, without_first
from backfill.arrow.widening import widens
from backfill.epoch import Epoch
from backfill.errors import SchemaChangedError, SnapshotGoneError, StagingError
from backfill.plan import Split
from backfill.readahead import read_ahead
from backfill.rows import RESERVED, UNCHANGED_COLUMNS, RowFormat
from backfill.staging.batch_files import BatchFiles
from backfill.upstream import SnapshotReader, TableSchema
from backfill.upstream.added import NOTHING_ADDED, Added
from backfill.wording import FRESH_START


@dataclass(frozen=True, slots=True)
class InlineChanges:
    """Finished output rows, as an Arrow stream."""

    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class StagedChanges:
    """Finished output rows, in staged files."""

    files: BatchFiles
    names: tuple[str, ...]
    added: Added = NOTHING_ADDED
    """Columns that the files may lack."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A staged file of snapshot rows, as the database gave them; as a `Part` by itself it has been staged already."""

    files: BatchFiles
    epoch: Epoch
    """The epoch at which its batch ends."""

    name: str
    added: Added = NOTHING_ADDED
    """Columns that the file may lack."""

    @property
    def is_staged(self) -> bool:
        return self.files.exists(self.name)


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """Snapshot rows that a reader fetches itself and stages, unless another attempt of its task has done so."""

    chunk: Chunk
    split: Split
    token: str
    """The token of the pin to read at."""

    exact: bool
    """Whether the split's row count was taken in the state that is read."""

    stage_before_emit: bool = False
    """Whether all of the chunk is staged before its first row is passed on."""


Part: TypeAlias = InlineChanges | StagedChanges | Chunk | SnapshotPart


def read(part: Part, reader: SnapshotReader, rows: RowFormat) -> Iterator[pa.RecordBatch]:
    """The part's rows in `rows.schema`."""
    match part:
        case InlineChanges(content=content):
            with ipc.open_stream(pa.py_buffer(content)) as stream:
                yield from stream
        case StagedChanges(files=files, names=names, added=added):
            schema = rows.schema
            for name in names:
                for batch in files.read(name):
                    yield _with_columns(batch, schema, _optional(added, batch.schema), files.number)
        case Chunk():
            for batch in _staged_chunk(part, rows.table.columns):
                yield rows.snapshot_rows(batch, part.epoch)
        case SnapshotPart():
            for batch in _snapshot(part, reader, rows.table.columns):
                yield rows.snapshot_rows(batch, part.chunk.epoch)


def require_columns(part: StagedChanges | Chunk, rows: RowFormat) -> None:
    """Raises SchemaChangedError where `read` would, because of columns that a staged file of the part lacks or has with
    other types.
    """
    match part:
        case StagedChanges(files=files, names=names, added=added):
            for name in names:
                found = files.schema(name)
                _require_columns(found, rows.schema, _optional(added, found), files.number)
        case Chunk(files=files, name=name, added=added):
            found = files.schema(name)
            _require_columns(found, rows.table.columns, added.lacked_by(found.names), files.number)


def _optional(added: Added, found: pa.Schema) -> Collection[str]:
    """The output columns that a staged file of changes with the schema `found` may lack."""
    lacking = added.lacked_by([column for column in found.names if column not in RESERVED])
    # A file that was staged when nothing was to be marked as unchanged has nothing to mark.
    return {*lacking, UNCHANGED_COLUMNS}


def _snapshot(part: SnapshotPart, reader: SnapshotReader, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    chunk, files = part.chunk, part.chunk.files
    if chunk.is_staged:
        files.require_still_planned(chunk.name, part.split)
        yield from _staged_chunk(chunk, columns)
        return
    files.require_shared()
    # Three stages side by side: the database and its driver, the staged file, and Spark's transport.
    found = read_ahead(files.write_through(chunk.name, columns, read_ahead(_counted(part, reader))))
    passed_on, is_left = 0, part.stage_before_emit
    try:
        for batch in found:
            if not part.stage_before_emit:
                passed_on += batch.num_rows
                yield batch
    except SnapshotGoneError:
        # The state is released once every chunk is staged; another attempt of this task may have staged ours. It has
        # the same rows in the same order, however they are cut into batches.
        if not chunk.is_staged:
            raise
        is_left = True
    files.require_still_planned(chunk.name, part.split)
    if is_left:
        yield from without_first(_staged_chunk(chunk, columns), passed_on)


def _staged_chunk(chunk: Chunk, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in chunk.files.read(chunk.name):
        yield _with_columns(batch, columns, chunk.added.lacked_by(batch.schema.names), chunk.files.number)


def committed_chunk(files: BatchFiles, name: str, table: TableSchema) -> Iterator[pa.RecordBatch]:
    """The rows of a staged chunk that the sink has, in `table.columns`; columns that it was not given are null."""
    for batch in files.read(name):
        yield _with_columns(batch, table.columns, table.values, files.number)


def _with_columns(batch: pa.RecordBatch, columns: pa.Schema, optional: Collection[str], number: int) -> pa.RecordBatch:
    """A staged batch in exactly these columns, though an earlier run may have written it with others; the `optional`
    ones that it lacks are null.
    """
    _require_columns(batch.schema, columns, optional, number)
    return in_columns(batch, columns)


def _require_columns(found: pa.Schema, columns: pa.Schema, optional: Collection[str], number: int) -> None:
    """Raises SchemaChangedError for a file that an earlier run has staged with other types, or without one of these
    columns that is not `optional`.
    """
    there = set(found.names)
    missing = [name for name in columns.names if name not in there and name not in optional]
    if missing:
        raise SchemaChangedError(
            f"a file of epoch {number} was staged without column {', '.join(missing)}. Name the columns that the "
            f"query had then, with the options columns and metadataColumns; or start over with {FRESH_START}"
        )
    both = [field for field in columns if field.name in there]
    retyped = [field for field in both if not widens(field.type, found.field(field.name).type)]
    if retyped:
        types = ", ".join(f"{field.name} ({field.type}) was {found.field(field.name).type}" for field in retyped)
        raise SchemaChangedError(
            f"a file of epoch {number} was staged when column {types}. Until that batch is done, give it back that "
            "type, in the table or with the former customSchema; or leave it out with the option columns, if the "
            f"sink can do without its values in that batch; or start over with {FRESH_START}"
        )


def _counted(part: SnapshotPart, reader: SnapshotReader) -> Generator[pa.RecordBatch, None, None]:
    """The part's rows. Where `exact`, raises StagingError unless they are as many as were counted in planning."""
    found = 0
    for batch in reader.read(part.token, part.split.ranges):
        found += batch.num_rows
        yield batch
    planned = part.split.row_count
    if part.exact and found != planned:
        raise StagingError(
            f"a chunk of epoch {part.chunk.epoch.number} has {found} rows and was planned with {planned}. Start the "
            "query again, which reads it at a later state. If snapshotFilter is set, make it depend on the row's own "
            "values alone; else please report this"
        )
