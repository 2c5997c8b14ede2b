"""The rows that a commit's files say are gone or are there, read with Arrow.

`DeltaTable.load_cdf` would give the same, but not (deltalake 1.6) where a partition's value has a character that a
path has in another form, such as a blank or a colon. So the tests hold what is read here against it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from backfill.arrays import Indices, Mask
from backfill.batches import coalesced, in_columns
from backfill.errors import SchemaChangedError, TableError
from backfill.upstream.delta.changes.file_types import is_form_of
from backfill.upstream.delta.changes.partitions import Partitioning
from backfill.upstream.delta.files.deletion_vectors import DamagedVectorError
from backfill.upstream.delta.files.footers import column_bytes
from backfill.upstream.delta.files.log import ChangeFile, Commit, Kind, Log
from backfill.upstream.delta.tables.table import Table, require_partition_values
from backfill.upstream.delta.tables.ways_out import START_OVER

_CHANGE_TYPE: Final = "_change_type"

VERSION, TIME, THERE = "_commit_version", "_commit_timestamp", _CHANGE_TYPE
"""Names that a table with a change data feed cannot have, because Delta has taken them for the feed's own columns. That
of the third is a text in a file, and here whether the row is there.
"""

_BATCH_ROWS: Final = 16_384
_BATCH_BYTES: Final = 8 << 20
_DECODED_ROWS: Final = 2_048
"""How many rows are decoded at a time: a text that is there many times takes its place in the file only once, so that
does not tell how many rows are too many.
"""


def rows_schema(columns: pa.Schema) -> pa.Schema:
    """The table's columns, the commit's version and time, and whether the row is there after the commit, or gone."""
    more: list[pa.Field[Any]] = [
        pa.field(VERSION, pa.int64()),
        pa.field(TIME, pa.timestamp("us", tz="UTC")),
        pa.field(THERE, pa.bool_()),
    ]
    return pa.schema([*columns, *more])


def change_rows(log: Log, table: Table, commits: Sequence[Commit]) -> Iterator[pa.RecordBatch]:
    """What the commits did, in no order."""
    columns = table.columns
    schema = rows_schema(columns)
    partitioning = Partitioning(table, commits)
    for commit in commits:
        kept = commit.kept_files()
        for file in commit.files:
            chosen = _chosen(log, table, commit, file, kept.get(file.location))
            for rows, there in _file_rows(log, table, commit, file, chosen, partitioning):
                count = rows.num_rows
                arrays: list[pa.Array[Any]] = [
                    *rows.columns,
                    pa.repeat(pa.scalar(commit.version, pa.int64()), count),
                    pa.repeat(pa.scalar(commit.timestamp, schema.field(TIME).type), count),
                    there,
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _require_partition(
    table: Table, commit: Commit, file: ChangeFile, present: Collection[str], partitioning: Partitioning
) -> None:
    """Refuses a file of which a partition's value is not known: the log need not say that of one that is removed.

    A column that it has neither in itself nor from its partition is null, if the table got that after the file.
    """
    lacking = [name for name in table.columns.names if name not in present and name not in (file.partition or {})]
    if not lacking:
        return
    partitioned_by = partitioning.at(commit.version - 1 if file.kind is Kind.REMOVED else commit.version)
    if partitioned_by is None:
        unknown = [] if file.partition is not None else lacking
        unsaid = f"its partition, and whether the table was partitioned by {', '.join(unknown)} is no longer known"
    else:
        unknown = [name for name in lacking if name in partitioned_by]
        unsaid = f"its value of the partition column {', '.join(unknown)}"
    if unknown:
        raise TableError(
            f"version {commit.version} of the Delta table {table.uri} has {file.location} and does not say {unsaid}, "
            "so the rows that are gone cannot be told in full. Leave it out with the option columns, if it is none of "
            f"keyColumns. {START_OVER}"
        )


def _require_types(table: Table, commit: Commit, found: Mapping[str, pa.DataType]) -> None:
    """Refuses a file whose values the columns of now do not hold: it is from before a column was given its type."""
    types = {name: table.columns.field(name).type for name in found}
    wrong = [f"{name!r} ({kind})" for name, kind in found.items() if not is_form_of(types[name], kind)]
    if wrong:
        raise _of_another_type(table, commit, ", ".join(wrong))


def _of_another_type(table: Table, commit: Commit, named: str) -> SchemaChangedError:
    return SchemaChangedError(
        f"version {commit.version} of the Delta table {table.uri} has rows of before a column was given its type of "
        f"now: {named}. Leave it out with the option columns until the stream is past that version, if it is none of "
        f"keyColumns, and then have the rows read again with backfill re-backfill. {START_OVER} otherwise"
    )


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which rows of a file are read: those at these places, or if not `taken` all others."""

    places: Indices
    taken: bool

    def some(self, at: int, count: int) -> bool:
        """Whether any of the `count` rows from the place `at` on may be among them."""
        first, end = np.searchsorted(self.places, (at, at + count))
        return bool(end > first) or not self.taken

    def mask(self, at: int, count: int) -> Mask:
        """Which of the `count` rows from the place `at` on are among them."""
        result = np.full(count, not self.taken)
        first, end = np.searchsorted(self.places, (at, at + count))
        result[self.places[first:end] - at] = self.taken
        return result


def _chosen(
    log: Log, table: Table, commit: Commit, file: ChangeFile, kept: tuple[ChangeFile, ChangeFile] | None
) -> Chosen | None:
    """None for all rows. Of a file that is kept, those that only `file` has of the two: the others have not changed."""

    def deleted(each: ChangeFile) -> Indices:
        try:
            return np.empty(0, np.int64) if each.vector is None else each.vector.deleted(log.files)
        except DamagedVectorError as error:
            raise TableError(
                f"version {commit.version} of the Delta table {table.uri}: the deletion vector of {each.location} "
                f"cannot be read ({error}), so which of its rows are gone is not known. {START_OVER}"
            ) from None

    if kept is not None:
        was, now = kept
        return Chosen(np.setdiff1d(deleted(now if file is was else was), deleted(file), assume_unique=True), taken=True)
    return None if file.vector is None else Chosen(deleted(file), taken=False)


def _file_rows(
    log: Log, table: Table, commit: Commit, file: ChangeFile, chosen: Chosen | None, partitioning: Partitioning
) -> Iterator[tuple[pa.RecordBatch, pa.Array[Any]]]:
    columns, partition = table.columns, file.partition or {}
    if chosen is not None and chosen.taken and not len(chosen.places):
        return
    with log.files.open(file.location) as opened:
        parquet = pq.ParquetFile(opened, coerce_int96_timestamp_unit="us")
        present = set(parquet.schema_arrow.names)
        _require_partition(table, commit, file, present, partitioning)
        carried = columns.names
        wanted = [name for name in carried if name in present and name not in partition]
        _require_types(table, commit, {name: parquet.schema_arrow.field(name).type for name in wanted})
        values = {
            name: _partition_value(table, commit, name, text) for name, text in partition.items() if name in carried
        }
        if file.kind is Kind.FEED:
            wanted.append(_CHANGE_TYPE)
        for at, batch in _batches(parquet, wanted, chosen):
            rows = in_columns(batch, columns, values)  # Those that were added later are null.
            if file.kind is Kind.FEED:
                said = batch.column(_CHANGE_TYPE).cast(pa.string())  # Arrow looks up no text in the form of a view.
                there = pc.is_in(said, pa.array(["insert", "update_postimage"]))
            else:
                there = pa.repeat(pa.scalar(file.kind is Kind.ADDED), batch.num_rows)
            if chosen is not None:
                mask = pa.array(chosen.mask(at, batch.num_rows))
                rows, there = rows.filter(mask), there.filter(mask)
            yield rows, there


def _batches(parquet: pq.ParquetFile, wanted: list[str], chosen: Chosen | None) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Batches that may have chosen rows, each with its place in the file."""
    at = 0
    for group in range(parquet.num_row_groups):
        end = at + parquet.metadata.row_group(group).num_rows
        if chosen is None or chosen.some(at, end - at):
            for batch in _decoded(parquet, group, wanted):
                yield at, batch
                at += batch.num_rows
        at = end


def _decoded(parquet: pq.ParquetFile, group: int, wanted: list[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a row group, decoded few at a time and put together to no more than about `_BATCH_BYTES`."""
    found = parquet.metadata.row_group(group)
    rows = _BATCH_BYTES * found.num_rows // max(1, column_bytes(found, set(wanted)))
    decoded = parquet.iter_batches(max(1, min(_DECODED_ROWS, rows)), row_groups=[group], columns=wanted)
    return coalesced(decoded, _BATCH_ROWS, _BATCH_BYTES)


def _partition_value(table: Table, commit: Commit, name: str, text: str | None) -> pa.Scalar[Any]:
    """A partition's value as the log has it, which writes null as an empty text."""
    require_partition_values(table.columns, [name])
    kind = table.columns.field(name).type
    found: pa.Scalar[Any] = pa.scalar(None, kind)
    if not text:
        return found
    if kind == pa.timestamp("us", tz="UTC") and text[-1] != "Z" and "+" not in text:
        text += "Z"
    try:
        found = pa.scalar(text, pa.string()).cast(kind)
    except pa.ArrowInvalid:  # Its text may be the value.
        raise _of_another_type(table, commit, f"{name!r} (text of a partition)") from None
    return found
