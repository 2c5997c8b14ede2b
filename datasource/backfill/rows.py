"""The rows a consumer gets: the table's columns, then the metadata columns.

| column              | type      | meaning                                                                         |
|---------------------|-----------|---------------------------------------------------------------------------------|
| `_change_type`      | string    | `insert`, `update_preimage`, `update_postimage`, `delete` (and `truncate`)      |
| `_is_snapshot`      | boolean   | true for a row that came from reading the table, false for a change; where rows |
|                     |           | are read again, such an `insert` is of a key that is present                    |
| `_commit_version`   | bigint    | the commit's version, equal for all its rows; for a snapshot row the epoch's    |
| `_commit_timestamp` | timestamp | the commit's time; for a snapshot row the epoch's                               |
| `_sequence`         | bigint    | grows strictly per key over the whole stream; order by it                       |
| `_unchanged_columns`| array     | only with `onUnchangedToast=mark`: columns whose value the log left out         |

`_change_type`, `_commit_version` and `_commit_timestamp` are named as in Spark's and Delta's change feeds; the others
are ours. A commit's version does not order a snapshot row against the row's next change, because a commit that the
snapshot does not show yet may stand in the log before the snapshot's own place. Hence `_sequence`: the number of the
epoch, then the row's place in the batch, snapshot rows last. The option `metadataColumns` leaves some of the first five
out: each takes Spark as long as a column of the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backfill.changes import columns_of
from backfill.epoch import Epoch
from backfill.errors import OptionsError, UnchangedToastError
from backfill.options import METADATA_COLUMNS, StreamOptions
from backfill.upstream import TableSchema
from backfill.wording import LOG_WHOLE_ROWS

ORDINAL_BITS: Final = 32
SNAPSHOT_ORDINAL: Final = (1 << ORDINAL_BITS) - 1
"""The place of every snapshot row of a batch: after all its changes. A key has one snapshot row at the most."""

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
UNCHANGED_COLUMNS: Final = "_unchanged_columns"
_TYPES: Final = (pa.string(), pa.bool_(), pa.int64(), _TIMESTAMP, pa.int64())
METADATA: Final = pa.schema(zip(METADATA_COLUMNS, _TYPES, strict=True))
RESERVED: Final = frozenset({*METADATA_COLUMNS, UNCHANGED_COLUMNS})
"""The names of our own columns; no column of the table may have one of them in output rows that have any of ours."""


@dataclass(frozen=True, slots=True)
class RowFormat:
    """How rows of one table become output rows; every batch it makes has exactly `schema`."""

    table: TableSchema
    mark_unchanged: bool
    metadata: tuple[str, ...] = METADATA_COLUMNS
    """Which columns of `METADATA` the rows have, in that order."""

    @classmethod
    def of(cls, table: TableSchema, options: StreamOptions) -> RowFormat:
        return cls(table, options.mark_unchanged, options.metadata)

    def __post_init__(self) -> None:
        clashes = [name for name in self.table.output if name.lower() in RESERVED]  # Spark knows no case
        if clashes and (self.metadata or self.mark_unchanged):
            raise OptionsError(
                f"column {', '.join(sorted(clashes))} of {self.table.name} has the name of a metadata column of this "
                "source (upper or lower case does not matter); leave it out with the option columns"
            )

    @property
    def schema(self) -> pa.Schema:
        # A deleted row has null in every column that the log leaves out, also in those that the table forbids to be.
        fields: list[Any] = [self.table.columns.field(name).with_nullable(True) for name in self.table.output]
        # That these are never null spares Spark a look for each value: a fifth of its work on a snapshot row.
        fields += [METADATA.field(name).with_nullable(False) for name in self.metadata]
        if self.mark_unchanged:
            fields.append(pa.field(UNCHANGED_COLUMNS, pa.list_(pa.field("element", pa.string()))))
        return pa.schema(fields)

    def snapshot_rows(self, rows: pa.RecordBatch, epoch: Epoch) -> pa.RecordBatch:
        """Snapshot rows (in `table.columns`) read as of `epoch`."""
        values = {
            "_change_type": "insert",
            "_is_snapshot": True,
            "_commit_version": epoch.version,
            "_commit_timestamp": epoch.timestamp,
            "_sequence": sequence(epoch, SNAPSHOT_ORDINAL),
        }
        scalars = {name: pa.scalar(values[name], METADATA.field(name).type) for name in self.metadata}
        metadata = {name: pa.repeat(value, rows.num_rows) for name, value in scalars.items()}
        return self._batch(rows, metadata, pa.nulls(rows.num_rows))

    def change_rows(self, marked: pa.RecordBatch, epoch: Epoch, first: int) -> pa.RecordBatch:
        """Marked changes as output rows; `first` is the place in the batch of the first of them.

        Raises UnchangedToastError where a value is missing and the consumer did not ask to be told which.
        """
        row, unchanged = marked["row"], marked["unchanged"]
        if not self.mark_unchanged and unchanged.null_count < len(unchanged):
            raise UnchangedToastError(_missing(self.table.name, unchanged))
        ordinals = np.arange(first, first + marked.num_rows, dtype=np.int64) + sequence(epoch, 0)
        metadata = {
            "_change_type": marked["change_type"],
            "_is_snapshot": pa.repeat(pa.scalar(False, pa.bool_()), marked.num_rows),
            "_commit_version": marked["version"],
            "_commit_timestamp": marked["timestamp"],
            "_sequence": pa.array(ordinals, pa.int64()),
        }
        return self._batch(columns_of(row), metadata, unchanged)

    def _batch(
        self, values: pa.RecordBatch | Mapping[str, Any], metadata: Mapping[str, Any], unchanged: Any
    ) -> pa.RecordBatch:
        schema = self.schema
        columns = [*(values[name] for name in self.table.output), *(metadata[name] for name in self.metadata)]
        if self.mark_unchanged:
            columns.append(unchanged.cast(schema.field(UNCHANGED_COLUMNS).type))
        return pa.RecordBatch.from_arrays(columns, schema=schema)


def sequence(epoch: Epoch, ordinal: int) -> int:
    """The `_sequence` of the row at this place in the batch that ends at the epoch."""
    return (epoch.number << ORDINAL_BITS) + ordinal


def _missing(table: str, unchanged: pa.Array[Any]) -> str:
    names = sorted(str(name) for name in pc.unique(pc.list_flatten(unchanged)))
    return (
        f"an update left the large value of column {', '.join(names)} of {table} unchanged, and the change log does "
        f"not carry it. Either start over with changelog=full, which fills it in; or, {LOG_WHOLE_ROWS}, so that later "
        "updates carry it; or leave the column out with the option columns; or, without snapshotFilter, set "
        f"onUnchangedToast=mark to get {UNCHANGED_COLUMNS}"
    )
