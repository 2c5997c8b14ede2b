"""Which batch a target has applied last, and what that means for the next one.

Batch ids begin at 0 with each checkpoint. Spark runs a batch again only if it is the last one it has logged, and the
stream then gives the same rows again. So a target remembers the last batch with a mark of its rows: the same id with
the same mark is that batch again, and anything else that is not a later id comes from another checkpoint, or from
options under which that batch has other rows. A batch that is not the first rests on those before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from backfill.errors import OptionsError, StateError
from backfill.wording import FRESH_START

BEGIN_ANEW: Final = f"call start_over with this name and begin a new stream, with {FRESH_START}"
"""How a query fills its target anew. Both, since the checkpoint that there is goes on after rows that are gone then."""


@dataclass(frozen=True, slots=True)
class Applied:
    """A batch of a query. The fields beside the id tell it from the batch with that id of another stream.

    `timestamp` is the greatest `_commit_timestamp`, in µs since 1970; None where the rows have none. Snapshot rows of
    PostgreSQL have one that no other batch has, even if nothing is written between two streams.
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


def named(query: str) -> str:
    """The name by which a query's batches are recorded; OptionsError for none, which several queries might have."""
    if not query.strip():
        raise OptionsError(f"query is {query!r}; expected a name that no other query over the table has, as 'orders'")
    return query


def require_known(query: str, *, table: str, is_known: bool, is_empty: Callable[[], bool]) -> None:
    """Before the table is emptied for this query: StateError where it has rows, and none of them by a batch of it, so
    that the name may be a wrong one and the rows another query's.
    """
    if not is_known and not is_empty():
        raise StateError(
            f"no query {query!r} has applied a batch to the table {table}, and it has rows; nothing was removed. Give "
            "the name that fills it to start_over, or empty the table yourself"
        )


def is_new(
    last: Applied | None,
    now: Applied,
    query: str,
    *,
    table: str,
    leaves_rows: bool,
    is_empty: Callable[[], bool],
    mended: Callable[[Applied], str],
) -> bool:
    """Whether the batch is still to be applied to the table, which notes every batch, also one without rows.

    `leaves_rows`: it has rows after the batch; `is_empty`: none now. `mended` is what a person does where the batches
    between the last one and this one had no rows.

    StateError if the batch does not follow the last one, or if the rows of the batches before it are missing.
    """
    if last is None:
        if now.batch_id > 0 and is_empty():
            raise StateError(
                f"the query {query!r} has applied no batch to this table, which is empty, and batch {now.batch_id} was "
                "to be applied now; the rows of those before would be missing. Name the table that has them, or put it "
                f"back with the record of its batches; else {BEGIN_ANEW}. Every batch has to be given to the sink, "
                "also one without rows"
            )
        return True
    if now.batch_id > last.batch_id + 1:
        raise StateError(
            f"the query {query!r} has applied batch {last.batch_id} to the table {table}, and batch {now.batch_id} was "
            "to be applied now: the table was put back to an earlier state, as from a backup or by a failover, or the "
            "sink was not given every batch, which it wants also without rows. If those in between had none, "
            f"{mended(last)}; else {BEGIN_ANEW}"
        )
    if now.batch_id > last.batch_id:
        return True
    if now.is_again(last):
        # If nobody wrote since, the first batch of a new checkpoint has the very same rows. Later batches need them.
        if now.batch_id == 0 and leaves_rows and is_empty():
            raise StateError(
                f"the query {query!r} has applied batch 0 with the same rows, and its table was emptied since. To fill "
                "it anew, call start_over with this name"
            )
        return False
    found = (
        f"the query {query!r} has applied batch {last.batch_id}, and batch {now.batch_id} with other rows was to be "
        "applied now. "
    )
    if now.batch_id > 0:
        raise StateError(
            f"{found}An older checkpoint was put back, or the query was started with options under which the batch "
            "has other rows: give it the later checkpoint, or the options that it had, stagingDir among them; else "
            f"{BEGIN_ANEW}"
        )
    raise StateError(
        f"{found}Batch ids begin at 0 again with a new checkpointLocation: give its query another name, or, to "
        "fill the table anew, call start_over with this name"
    )
