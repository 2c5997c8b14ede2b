"""Which batch a target has applied last, and what that means for the next one.

Batch ids begin at 0 with each checkpoint. Spark runs a batch again only if it is the last one it has logged, and the
stream then gives the same rows again. So a target remembers the last batch with a mark of its rows: the same id with
the same mark is that batch again, and anything else that is not a later id comes from another checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from backfill.errors import StateError

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Applied:
    """A batch of a query. `rows`, `version` and `sequence` tell it from the batch that another stream has there."""

    batch_id: int
    rows: int
    version: int | None
    sequence: int | None

    @classmethod
    def of(cls, batch_id: int, rows: pa.Table) -> Applied:
        found: list[Any] = [pc.max(rows[name]).as_py() for name in ("_commit_version", "_sequence")]
        return cls(batch_id, rows.num_rows, *found)


def is_new(last: Applied | None, now: Applied, query: str) -> bool:
    """Whether the batch is still to be applied; StateError if it is of another checkpoint than the last one."""
    if last is None or now.batch_id > last.batch_id:
        return True
    if now == last:
        return False
    raise StateError(
        f"the query {query!r} has applied batch {last.batch_id}, and batch {now.batch_id} with other rows was to be "
        "applied now. Batch ids begin at 0 again with a new checkpointLocation: give its query another name, or, to "
        "fill the table anew, call start_over with this name"
    )
