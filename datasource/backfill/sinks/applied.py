"""Which batch a target has applied last, and what that means for the next one.

Batch ids begin at 0 with each checkpoint. Spark runs a batch again only if it is the last one it has logged, and the
stream then gives the same rows again. So a target remembers the last batch with a mark of its rows: the same id with
the same mark is that batch again, and anything else that is not a later id comes from another checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from backfill.errors import StateError


@dataclass(frozen=True, slots=True)
class Applied:
    """A batch of a query. All but its id tells it from the batch that another stream has there.

    `timestamp` is the greatest `_commit_timestamp`, in µs since 1970; for snapshot rows of PostgreSQL it is that of no
    other batch, also where nothing is written between two streams. None where the rows have none, or where it was
    not noted.
    """

    batch_id: int
    rows: int
    version: int | None
    sequence: int | None
    timestamp: int | None = None

    @classmethod
    def of(cls, batch_id: int, rows: pa.Table) -> Applied:
        found: list[Any] = [pc.max(rows[name]).as_py() for name in ("_commit_version", "_sequence")]
        if "_commit_timestamp" in rows.column_names:
            found.append(pc.max(rows["_commit_timestamp"].cast(pa.timestamp("us", "UTC"))).cast(pa.int64()).as_py())
        return cls(batch_id, rows.num_rows, *found)

    def is_again(self, last: Applied) -> bool:
        """Whether this is that batch once more."""
        if None in (self.timestamp, last.timestamp):
            return replace(self, timestamp=None) == replace(last, timestamp=None)
        return self == last


def is_new(last: Applied | None, now: Applied, query: str) -> bool:
    """Whether the batch is still to be applied; StateError if it is of another checkpoint than the last one."""
    if last is None or now.batch_id > last.batch_id:
        return True
    if now.is_again(last):
        return False
    raise StateError(
        f"the query {query!r} has applied batch {last.batch_id}, and batch {now.batch_id} with other rows was to be "
        "applied now. Batch ids begin at 0 again with a new checkpointLocation: give its query another name, or, to "
        "fill the table anew, call start_over with this name"
    )
