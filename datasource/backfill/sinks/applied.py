"""Which batch a target has applied last, and what that means for the next one.

Batch ids begin at 0 with each checkpoint. Spark runs a batch again only if it is the last one it has logged, and the
stream then gives the same rows again. So a target remembers the last batch with a mark of its rows: the same id with
the same mark is that batch again, and anything else that is not a later id comes from another checkpoint, or from
options under which that batch has other rows. A batch that is not the first builds on those before.
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
"""How a query fills its target anew. It takes both, since the old checkpoint goes on after rows that are gone then."""


@dataclass(frozen=True, slots=True)
class AppliedBatch:
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
    def of(cls, batch_id: int, rows: pa.Table) -> AppliedBatch:
        found: list[Any] = [pc.max(rows[name]).as_py() for name in ("_commit_version", "_sequence")]
        if "_commit_timestamp" in rows.column_names:
            found.append(pc.max(rows["_commit_timestamp"].cast(pa.timestamp("us", "UTC"))).cast(pa.int64()).as_py())
        return cls(batch_id, rows.num_rows, *found)

    def is_again(self, last: AppliedBatch) -> bool:
        """Whether this is the batch `last` once more."""
        if None in (self.timestamp, last.timestamp):
            return replace(self, timestamp=None) == replace(last, timestamp=None)
        return self == last


def named(query: str) -> str:
    """The name by which a query's batches are recorded; OptionsError if it is blank, as several queries' might be."""
    if not query.strip():
        raise OptionsError(f"query is {query!r}; expected a name that no other query over the table has, as 'orders'")
    return query


@dataclass(frozen=True, slots=True)
class FilledTable:
    """A table and the query that fills it, under the names that people know; and whether it has no rows now.

    The table notes every batch, also one without rows.
    """

    table: str
    query: str
    is_empty: Callable[[], bool]

    def require_known(self, *, is_known: bool) -> None:
        """Raises StateError, before the table is emptied for this query, where it has rows but knows no batch of the
        query: then the name may be wrong, and the rows another query's.
        """
        if not is_known and not self.is_empty():
            raise StateError(
                f"no query {self.query!r} has applied a batch to the table {self.table}, and it has rows; nothing was "
                "removed. Give start_over the name of the query that fills it, or empty the table yourself"
            )

    def is_new(
        self,
        last: AppliedBatch | None,
        now: AppliedBatch,
        *,
        leaves_rows: bool,
        way_out: Callable[[AppliedBatch, AppliedBatch], str],
    ) -> bool:
        """Whether the batch is still to be applied; `leaves_rows`: the table has rows after it.

        `way_out` gives what a person can do if the batches between two of them had no rows.

        Raises StateError if the batch does not follow the last one, or the rows of the batches before it are missing.
        """
        if last is None:
            if now.batch_id > 0 and self.is_empty():
                raise self._without_those_before(now)
            return True
        if now.batch_id > last.batch_id + 1:
            raise self._gap(last, now, way_out(last, now))
        if now.batch_id > last.batch_id:
            return True
        if not now.is_again(last):
            raise self._of_another_checkpoint(last, now)
        # If nobody wrote since, the first batch of a new checkpoint has the very same rows. Later batches need them.
        if now.batch_id == 0 and leaves_rows and self.is_empty():
            raise StateError(
                f"the query {self.query!r} has applied batch 0 with the same rows, and its table was emptied since. To "
                "fill it anew, call start_over with this name"
            )
        return False

    def _without_those_before(self, now: AppliedBatch) -> StateError:
        return StateError(
            f"the query {self.query!r} has applied no batch to this table, which is empty, and now it should apply "
            f"batch {now.batch_id}, without the rows of the batches before. Name the table that has them, or restore "
            f"it with the record of its batches; else {BEGIN_ANEW}. Give the sink every batch, also those without "
            "rows"
        )

    def _gap(self, last: AppliedBatch, now: AppliedBatch, way_out: str) -> StateError:
        return StateError(
            f"the query {self.query!r} has applied batch {last.batch_id} to the table {self.table}, and now it should "
            f"apply batch {now.batch_id}: the table was restored to an earlier state, as from a backup or by a "
            "failover, or the sink was not given every batch (it needs those without rows as well). If the batches "
            f"in between had no rows, {way_out}; else {BEGIN_ANEW}"
        )

    def _of_another_checkpoint(self, last: AppliedBatch, now: AppliedBatch) -> StateError:
        found = (
            f"the query {self.query!r} has applied batch {last.batch_id}, and now it should apply batch "
            f"{now.batch_id} with other rows. "
        )
        if now.batch_id > 0:
            return StateError(
                f"{found}An older checkpoint was restored, or the query was started with options that give the batch "
                "other rows: give it the later checkpoint, or its former options, stagingDir among them; else "
                f"{BEGIN_ANEW}"
            )
        return StateError(
            f"{found}With a new checkpointLocation, batch ids begin at 0 again: give the query another name, or, to "
            "fill the table anew, call start_over with this name"
        )
