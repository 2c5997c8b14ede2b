"""Reading the table as it is now, in parallel: `spark.read`.

No state is pinned, because Spark keeps what was planned and reads it again hours later, when no pin would be left. So
each reader reads its key ranges in a state of its own, that of the moment at which it begins. Rows within a part are
of one state; a row that moves to another key meanwhile may be in two parts, or in none.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa

from backfill.arrow.batches import in_columns
from backfill.options import StreamOptions
from backfill.plan import MIN_SPLIT_ROWS
from backfill.readahead import read_ahead
from backfill.rows import METADATA
from backfill.upstream import SnapshotReader, Upstream
from backfill.vnode import WHOLE_TABLE, Coverage, KeyRange, merged, ranges_between

_METADATA: Final = {"_change_type": "insert", "_is_snapshot": True, "_commit_version": 0, "_sequence": 0}
"""The metadata of a row, where a stream's columns are asked for. It is of no commit, and comes before all that a stream
emits for its key."""


def cut(upstream: Upstream, options: StreamOptions) -> tuple[Coverage, ...]:
    """The key space in at most `numPartitions` contiguous vnode ranges with about equally many rows."""
    parts = max(1, min(options.num_partitions, upstream.size().row_count // MIN_SPLIT_ROWS))
    if parts == 1:
        return ((WHOLE_TABLE,),)
    ranges = ranges_between(upstream.bounds(max(options.vnode_count, parts + 1)))
    parts = min(parts, len(ranges))
    ends = [len(ranges) * part // parts for part in range(parts + 1)]
    return tuple(merged(ranges[ends[at] : ends[at + 1]]) for at in range(parts))


def read(reader: SnapshotReader, ranges: Sequence[KeyRange], columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of the ranges as they are now, with these columns: the table's, and maybe a stream's further ones."""
    return read_ahead(_rows(reader, ranges, columns))


def _rows(
    reader: SnapshotReader, ranges: Sequence[KeyRange], columns: pa.Schema
) -> Generator[pa.RecordBatch, None, None]:
    values = {**_METADATA, "_commit_timestamp": datetime.now(UTC)}
    made_up = {name: pa.scalar(value, METADATA.field(name).type) for name, value in values.items()}
    for batch in reader.scan(ranges):
        yield in_columns(batch, columns, made_up)
