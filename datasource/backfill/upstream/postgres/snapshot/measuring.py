"""How far key ranges go in the exported state, counted by several sessions where there is much to count.

Counting takes a server process some 70 ns a row, and readers wait for it: with one session, eight readers would wait
for as long as they read. So at most as many count as will read, and the exporting session, which is idle then.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import psycopg

from backfill.errors import BackfillError
from backfill.plan import Extent, Measure
from backfill.upstream.postgres.session.connection import Session
from backfill.upstream.postgres.session.failures import translating
from backfill.upstream.postgres.snapshot.counting import RANGES_AT_ONCE, RangeCounter
from backfill.upstream.postgres.snapshot.entering import enter_pinned
from backfill.upstream.postgres.snapshot.pin import ExportedSnapshot, ExportingSession

ROWS_PER_SESSION: Final = 200_000
"""Another session is worth opening only for so many rows: fewer are counted faster than it opens."""

MOST_SESSIONS: Final = 8
"""Many servers allow a hundred sessions in all, and these are opened at once."""

CANCEL_INTERVAL: Final = 0.1
CANCEL_PATIENCE: Final = 1.0


@dataclass(frozen=True, slots=True)
class Measuring:
    """Measures ranges of the exporter's table in a state that it holds."""

    exporter: ExportingSession
    state: ExportedSnapshot
    only: str
    """A condition: the rows for which it holds are read, and so counted. Empty for all."""

    readers: int

    def _sessions(self, requests: Sequence[Measure], table_rows: int) -> int:
        """How many sessions are worth counting in."""
        rows = min(table_rows, sum(request.limit for request in requests))
        # Ranges that one bitmap can count are not spread over several: these would look at the same pages.
        parts = -(-len(requests) // RANGES_AT_ONCE) if self.state.count_by_bitmap else len(requests)
        return max(1, min(self.readers + 1, MOST_SESSIONS, parts, rows // ROWS_PER_SESSION))

    def measure(self, requests: Sequence[Measure], table_rows: int) -> tuple[Extent, ...]:
        """See `Upstream.measure`; `table_rows` is about how many the table has."""
        sessions = self._sessions(requests, table_rows)
        shares = [requests[at::sessions] for at in range(sessions)]
        counting = [self.state.session]
        with ThreadPoolExecutor(sessions) as threads:
            others = [threads.submit(self._elsewhere, share, counting) for share in shares[1:]]
            try:
                measured = [self._here(shares[0])]
                # No lock is held here. A TRUNCATE would wait for it, and the other sessions for the TRUNCATE.
                measured += [self._result(other, share) for other, share in zip(others, shares[1:], strict=True)]
            except BaseException:
                _cancel(counting, others)
                raise
        return tuple(measured[at % sessions][at // sessions] for at in range(len(requests)))

    def _result(self, other: Future[tuple[Extent, ...]], share: Sequence[Measure]) -> tuple[Extent, ...]:
        try:
            return other.result()
        except BackfillError:
            # The server may have no connection left, or let nobody in any more. What keeps the exporting session from
            # counting too is noticed here as well.
            return self._here(share)

    def _here(self, requests: Sequence[Measure]) -> tuple[Extent, ...]:
        with translating(), self.exporter.looking(self.state.token) as session:
            try:
                return self._extents(session, requests)
            except (KeyboardInterrupt, SystemExit):
                # Releases of psycopg before 3.3.6 wait for what the server still does when a pipeline is left.
                _cancel([session], [])
                raise

    def _elsewhere(self, requests: Sequence[Measure], counting: list[Session]) -> tuple[Extent, ...]:
        with translating(), self.exporter.connector.session() as session, session.cursor() as cursor:
            counting.append(session)
            enter_pinned(cursor, cursor.execute, self.exporter.table, self.state.token)
            with session.pipeline():
                return self._extents(session, requests)

    def _extents(self, session: Session, requests: Sequence[Measure]) -> tuple[Extent, ...]:
        return RangeCounter(session, self.exporter.table, self.only, self.state.count_by_bitmap).extents(requests)


def _cancel(counting: Sequence[Session], others: Sequence[Future[tuple[Extent, ...]]]) -> None:
    """Cancels what these sessions count, until the other threads have ended: some may still be connecting.

    Else a query that is stopped in the midst of it would wait for them, and one that ends would leave its own statement
    to the server.
    """
    while True:
        for session in list(counting):
            with suppress(psycopg.Error):
                session.cancel_safe(timeout=CANCEL_PATIENCE)
        if not wait(others, CANCEL_INTERVAL).not_done:
            return
