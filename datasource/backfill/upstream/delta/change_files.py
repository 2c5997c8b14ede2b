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
from backfill.upstream.delta.files import Place
from backfill.upstream.delta.location import START_OVER, open_at
from backfill.upstream.delta.log import ChangeFile, Commit, Kind, Log
from backfill.upstream.delta.position import Position
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
    uri, columns = table.uri, table.columns
    schema = rows_schema(columns)
    for commit in commits:
        vectors = _vectors(table, commit)
        for file in commit.files:
            if file.partition is None:
                _require_no_partition(log, table, commit, file)
            keep = vectors.get((file.kind, file.place)) if file.vector else None
            if file.vector and keep is None:
                raise TableError(f"version {commit.version} of {uri}: the deletion vector of {file.place} is not found")
            for rows, there in _file_rows(log, file, columns, keep):
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
    log: Log, file: ChangeFile, columns: pa.Schema, keep: Mask | None
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
            if keep is not None:
                mask = pa.array(_kept(keep, at, batch.num_rows))
                rows, there = rows.filter(mask), there.filter(mask)
            at += batch.num_rows
            yield rows, there


def _kept(keep: Mask, at: int, count: int) -> Mask:
    """A vector may end before its file does: then the rest is kept."""
    found = keep[at : at + count]
    return np.append(found, np.ones(count - len(found), np.bool_))


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


def versions_of_vectors(commit: Commit) -> dict[int, Kind]:
    """The versions that say which rows deletion vectors leave of the commit's files: of those that it added its own, of
    those that it removed the one before it.
    """
    kinds = {file.kind for file in commit.files if file.vector}
    versions = {commit.version - 1: Kind.REMOVED, commit.version: Kind.ADDED}
    return {version: kind for version, kind in versions.items() if kind in kinds}


def _vectors(table: Table, commit: Commit) -> dict[tuple[Kind, Place], Mask]:
    """Which rows of the files with a deletion vector are kept, by their places: in two folders of the table there may
    be files of the same name.
    """
    found: dict[tuple[Kind, Place], Mask] = {}
    for version, kind in versions_of_vectors(commit).items():
        opened = open_at(table.uri, Position(version, table.table_id))
        files = [file.place for file in commit.files if file.vector and file.kind is kind]
        places = {place.under(opened.table_uri): place for place in files}
        for batch in pa.RecordBatchReader.from_stream(opened.deletion_vectors()):
            for uri, keep in zip(batch.column(0), batch.column(1), strict=True):
                place = places.get(Place.of(uri.as_py()))
                if place is not None:
                    found[kind, place] = keep.values.to_numpy(zero_copy_only=False)
    return found
