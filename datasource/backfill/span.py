"""The changes between two positions as rows: `spark.read` with `startingPosition`.

Nothing is kept between two reads, so `_sequence` is a row's place in its own read: 1, 2, 3, … in commit order. It is
above the 0 of rows read from the table. Rows of several reads are ordered by `_commit_version`, then by `_sequence`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from backfill.arrow.arrays import Indices, Mask
from backfill.epoch import Epoch
from backfill.mark import mark, marked_rows, refuse_truncate
from backfill.options import OnTruncate, Options
from backfill.readahead import read_ahead
from backfill.rows import RowFormat
from backfill.upstream import LATEST, ChangeReader, Upstream

_OF_NO_BATCH: Final = Epoch(0, "", 0, 0)


def changes_of(upstream: Upstream, options: Options) -> ChangeReader:
    """The changes between the positions that the options name; `latest` is fixed by this call."""
    return upstream.span(options.starting_position, options.ending_position or LATEST)


def read(changes: ChangeReader, rows: RowFormat, on_truncate: OnTruncate, table: str) -> Iterator[pa.RecordBatch]:
    """All changes of the table of this name, whatever their key, in `rows.schema` and in commit order; the same again
    each time.
    """
    return read_ahead(_rows(changes, rows, on_truncate, table))


def _rows(
    changes: ChangeReader, rows: RowFormat, on_truncate: OnTruncate, table: str
) -> Generator[pa.RecordBatch, None, None]:
    place = 1
    for batch in changes.read():
        refuse_truncate(batch, on_truncate, table)
        found = mark(batch, key=rows.table.key, forwarded=_every_key)
        marked = marked_rows(batch, found, truncates=on_truncate is OnTruncate.EMIT)
        yield rows.change_rows(marked, _OF_NO_BATCH, place)
        place += marked.num_rows


def _every_key(keys: pa.RecordBatch, _rows: Indices) -> Mask:
    return np.ones(keys.num_rows, np.bool_)
