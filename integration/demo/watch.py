"""What somebody who watches the stream is told: a line for each batch, and the sum of it."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from integration.demo.proof import Comparison
    from integration.demo.sink import Accounts

BAR: Final = 20

HEADER: Final = """\
    time  backfill                    vnodes done     rows read   changes to rows   rows in   seconds
                                                   of the table       read before  the sink    behind"""


@dataclass
class Watch:
    """Prints a line for each batch, and adds up what came."""

    query: StreamingQuery
    accounts: Accounts
    began: float = field(default_factory=time.monotonic)
    seen: int = -1
    snapshot_rows: int = 0
    changes: int = 0
    changes_while_reading: int = 0
    backfilled_at: float | None = None

    def look(self) -> None:
        if (error := self.query.exception()) is not None:
            raise error
        for progress in self.query.recentProgress:
            if progress.batchId > self.seen and progress.numInputRows:
                self.seen = progress.batchId
                self._add(json.loads(progress.sources[0].latestOffset))

    def _add(self, figures: dict[str, Any]) -> None:
        batch = self.accounts.batch(self.seen)
        self.snapshot_rows += batch.snapshot_rows
        self.changes += batch.changes
        if self.backfilled_at is None:
            self.changes_while_reading += batch.changes
            if figures["phase"] == "changes":
                self.backfilled_at = time.monotonic()
        part = figures["vnodes_completed"] / figures["vnodes"]
        bar = ("█" * int(part * BAR)).ljust(BAR, "░")
        print(
            f"{time.monotonic() - self.began:6.1f} s  {bar} {part:4.0%}"
            f"{figures['vnodes_completed']:9,} / {figures['vnodes']}"
            f"{batch.snapshot_rows:14,}{batch.changes:18,}{batch.rows_after:10,}{batch.seconds_behind:10.1f}",
            flush=True,
        )

    def tell(self, written: int, found: Comparison) -> None:
        """`written`: how many rows were changed upstream while the stream ran."""
        seconds = (self.backfilled_at or 0) - self.began
        rate = self.snapshot_rows / seconds
        early = self.changes_while_reading
        print(
            f"""
The table was read in {seconds:.0f} s, {rate:,.0f} rows a second, slice by slice and without a lock.
Until it stopped, pgbench changed {written:,} rows. Where the row had been read before, the change came through
the stream: {self.changes:,} change rows, {early:,} of them while other slices were still to be read.
Where it had not, reading it later showed the change.

                            table              sink
rows            {found.table_rows:17,} {found.sink_rows:17,}
sum of balances {found.table_sum:17,} {found.sink_sum:17,}
only there      {found.only_table:17,} {found.only_sink:17,}
"""
        )
        print("The sink is the table, row by row." if found.equal else "THE SINK IS NOT THE TABLE.", flush=True)
