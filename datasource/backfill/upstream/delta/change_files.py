"""The rows that a commit's files say are gone or are there, read with Arrow.

`DeltaTable.load_cdf` would give the same, but not (deltalake 1.6) where a partition's value has a character that a
path has in another form, such as a blank or a colon. So the tests hold what is read here against it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from backfill.errors import TableError
from backfill.upstream.delta.deletion_vectors import DamagedVectorError, DeletionVector, Places
from backfill.upstream.delta.location import START_OVER
from backfill.upstream.delta.log import ChangeFile, Commit, Kind, Log
from backfill.upstream.delta.table import Table

VERSION, TIME, THERE = "_commit_version", "_commit_timestamp", "_change_type"
"""Names that a table with a change data feed cannot have, because Delta has taken them for the feed's own columns."""

_CHANGE_TYPE: Final = "_change_type"

_BATCH_ROWS: Final = 65_536

Mask = npt.NDArray[np.bool_]


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
    for commit in commits:
        for file in commit.files:
            if file.partition is None:
                _require_no_partition(log, table, commit, file)
            deleted = None if file.vector is None else _deleted(log, table, commit, file, file.vector)
            for rows, there in _file_rows(log, file, columns, deleted):
                count = rows.num_rows
                arrays: list[pa.Array[Any]] = [
                    *rows.columns,
                    pa.repeat(pa.scalar(commit.version, pa.int64()), count),
                    pa.repeat(pa.scalar(commit.timestamp, schema.field(TIME).type), count),
                    there,
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _require_no_partition(log: Log, table: Table, commit: Commit, file: ChangeFile) -> None:
    """Refuses a file whose partition the log does not say, as it need not for one that is removed."""
    unknown = [name for name in table.columns.names if name in log.partitioned_by]
    if unknown:
        raise TableError(
            f"version {commit.version} of the Delta table {table.uri} removes {file.place} and does not say its value "
            f"of the partition column {', '.join(unknown)}, so the rows that are gone cannot be told in full. Leave it "
            f"out with the option columns, if it is none of keyColumns. {START_OVER}"
        )


def _file_rows(
    log: Log, file: ChangeFile, columns: pa.Schema, deleted: Places | None
) -> Iterator[tuple[pa.RecordBatch, pa.Array[Any]]]:
    partition = file.partition or {}
    with log.files.open(file.place) as opened:
        parquet = pq.ParquetFile(opened, coerce_int96_timestamp_unit="us")
        present = set(parquet.schema_arrow.names)
        wanted = [name for name in columns.names if name in present and name not in partition]
        if file.kind is Kind.FEED:
            wanted.append(_CHANGE_TYPE)
        at = 0
        for batch in parquet.iter_batches(_BATCH_ROWS, columns=wanted):
            rows = typed(batch, partition, columns)
            if file.kind is Kind.FEED:
                there = pc.is_in(batch.column(_CHANGE_TYPE), pa.array(["insert", "update_postimage"]))
            else:
                there = pa.repeat(pa.scalar(file.kind is Kind.ADDED), batch.num_rows)
            if deleted is not None:
                mask = pa.array(_kept(deleted, at, batch.num_rows))
                rows, there = rows.filter(mask), there.filter(mask)
            at += batch.num_rows
            yield rows, there


def _deleted(log: Log, table: Table, commit: Commit, file: ChangeFile, vector: DeletionVector) -> Places:
    try:
        return vector.deleted(log.files)
    except DamagedVectorError as error:
        raise TableError(
            f"version {commit.version} of the Delta table {table.uri}: the deletion vector of {file.place} cannot be "
            f"read ({error}), so which of its rows are gone is not known. {START_OVER}"
        ) from None


def _kept(deleted: Places, at: int, count: int) -> Mask:
    """Which of the rows from this place on are not deleted."""
    result = np.ones(count, np.bool_)
    first, end = np.searchsorted(deleted, (at, at + count))
    result[deleted[first:end] - at] = False
    return result


def typed(batch: pa.RecordBatch, partition: Mapping[str, str | None], columns: pa.Schema) -> pa.RecordBatch:
    """The batch with these columns: a partition's are of one value, and those that were added later are null."""
    arrays = []
    for field in columns:
        if field.name in partition:
            value: Any = partition_value(partition[field.name], field.type)
            arrays.append(pa.repeat(value, batch.num_rows))
        elif field.name in batch.schema.names:
            arrays.append(batch.column(field.name).cast(field.type))
        else:
            arrays.append(pa.nulls(batch.num_rows, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def partition_value(text: str | None, kind: pa.DataType) -> pa.Scalar[Any]:
    """A partition's value as the log has it, which writes null as an empty text."""
    if not text:
        return pa.scalar(None, kind)
    if kind == pa.timestamp("us", tz="UTC") and text[-1] != "Z" and "+" not in text:
        text += "Z"
    return pa.scalar(text, pa.string()).cast(kind)
