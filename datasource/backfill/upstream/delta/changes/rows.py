"""The rows that a commit's files say are gone or are there, read with Arrow.

`DeltaTable.load_cdf` would give the same, but not (deltalake 1.6) where a partition's value has a character that a
path has in another form, such as a blank or a colon. So the tests hold what is read here against it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from backfill.arrow.arrays import Indices
from backfill.arrow.batches import in_columns
from backfill.errors import SchemaChangedError, TableError
from backfill.upstream.delta.changes.file_types import is_form_of
from backfill.upstream.delta.changes.partitions import Partitioning
from backfill.upstream.delta.changes.row_selection import RowSelection, batches
from backfill.upstream.delta.files.commits import ChangeFile, Commit, Kind
from backfill.upstream.delta.files.deletion_vectors import DamagedVectorError
from backfill.upstream.delta.files.location import FileLocation, Files
from backfill.upstream.delta.tables.table import Table, require_partition_values
from backfill.upstream.delta.tables.ways_out import PAST_IT

_CHANGE_TYPE: Final = "_change_type"

VERSION, TIME, THERE = "_commit_version", "_commit_timestamp", _CHANGE_TYPE
"""Names that a table with a change data feed cannot have, because Delta has taken them for the feed's own columns. The
third is a text in a file, and here whether the row is there.
"""

Rows: TypeAlias = "tuple[pa.RecordBatch, pa.Array[Any]]"
"""Rows in the table's columns, and for each whether it is there after the commit."""


def rows_schema(columns: pa.Schema) -> pa.Schema:
    """The table's columns, the commit's version and time, and whether the row is there after the commit, or gone."""
    more: list[pa.Field[Any]] = [
        pa.field(VERSION, pa.int64()),
        pa.field(TIME, pa.timestamp("us", tz="UTC")),
        pa.field(THERE, pa.bool_()),
    ]
    return pa.schema([*columns, *more])


def change_rows(files: Files, table: Table, commits: Sequence[Commit]) -> Iterator[pa.RecordBatch]:
    """The rows that the commits took away or put there, in the columns of `rows_schema` and in no order."""
    schema = rows_schema(table.columns)
    partitioning = Partitioning(table, commits)
    for commit in commits:
        version, time = pa.scalar(commit.version, pa.int64()), pa.scalar(commit.timestamp, schema.field(TIME).type)
        for rows, there in _CommitFiles(files, table, commit, commit.kept_files(), partitioning).rows():
            count = rows.num_rows
            arrays: list[pa.Array[Any]] = [*rows.columns, pa.repeat(version, count), pa.repeat(time, count), there]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


@dataclass(frozen=True, slots=True)
class _CommitFiles:
    """The files with one commit's changes; `kept` are the commit's `kept_files`."""

    files: Files
    table: Table
    commit: Commit
    kept: Mapping[FileLocation, tuple[ChangeFile, ChangeFile]]
    partitioning: Partitioning

    def rows(self) -> Iterator[Rows]:
        for file in self.commit.files:
            chosen = self._chosen(file)
            if not chosen.is_none:
                yield from self._rows(file, chosen)

    def _rows(self, file: ChangeFile, chosen: RowSelection) -> Iterator[Rows]:
        columns = self.table.columns
        with self.files.open(file.location) as opened:
            parquet = pq.ParquetFile(opened, coerce_int96_timestamp_unit="us")
            types = {field.name: field.type for field in parquet.schema_arrow}
            partition = self._partition(file, types)
            own = [name for name in columns.names if name in types and name not in partition]
            self._require_types({name: types[name] for name in own})
            feed = [_CHANGE_TYPE] if file.kind is Kind.FEED else []
            for at, batch in batches(parquet, [*own, *feed], chosen):
                rows = in_columns(batch, columns, partition)  # Those that were added later are null.
                there = _there(file.kind, batch)
                mask = chosen.mask(at, batch.num_rows)
                if not mask.all():
                    rows, there = rows.filter(pa.array(mask)), there.filter(pa.array(mask))
                yield rows, there

    # -- which rows ------------------------------------------------------------------------------------------------

    def _chosen(self, file: ChangeFile) -> RowSelection:
        """The rows of `file` that changed: all; of a file that stays in the table, those that only `file` has."""
        if file.location not in self.kept:
            return RowSelection(self._deleted(file), taken=False)
        was, now = self.kept[file.location]
        other = self._deleted(now if file is was else was)
        return RowSelection(np.setdiff1d(other, self._deleted(file), assume_unique=True), taken=True)

    def _deleted(self, file: ChangeFile) -> Indices:
        try:
            return np.empty(0, np.int64) if file.vector is None else file.vector.deleted(self.files)
        except DamagedVectorError as error:
            raise TableError(
                f"version {self.commit.version} of the Delta table {self.table.uri}: the deletion vector of "
                f"{file.location} cannot be read ({error}), so it is not known which of its rows are deleted: "
                f"{PAST_IT}"
            ) from None

    # -- values of a partition -------------------------------------------------------------------------------------

    def _partition(self, file: ChangeFile, present: Collection[str]) -> dict[str, pa.Scalar[Any]]:
        """The table's columns that have one value for all rows of the file, by its partition, with these values."""
        partition = file.partition or {}
        columns = self.table.columns.names
        # A column that the file has neither in itself nor by its partition is null, if the table got it later.
        lacking = [name for name in columns if name not in present and name not in partition]
        if lacking:
            self._require_partition(file, lacking)
        return {name: self._value(name, text) for name, text in partition.items() if name in columns}

    def _require_partition(self, file: ChangeFile, lacking: Sequence[str]) -> None:
        """Refuses a file that lacks a column of the partition: the log need not say its value for a removed file."""
        version = self.commit.version
        partitioned_by = self.partitioning.at(version - 1 if file.kind is Kind.REMOVED else version)
        if partitioned_by is None:
            unknown = lacking if file.partition is None else []
            unsaid = f"its partition, and whether the table was partitioned by {', '.join(unknown)} is no longer known"
        else:
            unknown = [name for name in lacking if name in partitioned_by]
            unsaid = f"its value of the partition column {', '.join(unknown)}"
        if unknown:
            raise TableError(
                f"version {version} of the Delta table {self.table.uri} has {file.location} and does not say "
                f"{unsaid}, so the deleted rows cannot be given in full. Leave the column out with the option "
                f"columns, if it is not one of keyColumns; otherwise {PAST_IT}"
            )

    def _value(self, name: str, text: str | None) -> pa.Scalar[Any]:
        """A partition's value as the log has it, which writes null as an empty text."""
        require_partition_values(self.table.columns, [name])
        kind = self.table.columns.field(name).type
        found: pa.Scalar[Any] = pa.scalar(None, kind)
        if not text:
            return found
        if kind == pa.timestamp("us", tz="UTC") and text[-1] != "Z" and "+" not in text:
            text += "Z"
        try:
            found = pa.scalar(text, pa.string()).cast(kind)
        except pa.ArrowInvalid:  # Its text may be the value.
            raise self._of_another_type(f"{name!r} (text of a partition)") from None
        return found

    # -- types -----------------------------------------------------------------------------------------------------

    def _require_types(self, found: Mapping[str, pa.DataType]) -> None:
        """Refuses a file whose values do not fit the present columns: it is from before one was given its type."""
        columns = self.table.columns
        wrong = [f"{name!r} ({kind})" for name, kind in found.items() if not is_form_of(columns.field(name).type, kind)]
        if wrong:
            raise self._of_another_type(", ".join(wrong))

    def _of_another_type(self, named: str) -> SchemaChangedError:
        return SchemaChangedError(
            f"version {self.commit.version} of the Delta table {self.table.uri} has rows from before a column got its "
            f"present type: {named}. If it is not one of keyColumns, leave it out with the option columns until the "
            "stream is past that version, and then read the rows again with backfill re-backfill; otherwise "
            f"{PAST_IT}"
        )


def _there(kind: Kind, batch: pa.RecordBatch) -> pa.Array[Any]:
    if kind is not Kind.FEED:
        return pa.repeat(pa.scalar(kind is Kind.ADDED), batch.num_rows)
    change_types = batch.column(_CHANGE_TYPE).cast(pa.string())  # Arrow does not look up string views.
    return pc.is_in(change_types, pa.array(["insert", "update_postimage"]))
