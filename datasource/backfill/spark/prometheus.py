"""What streams tell Spark, as metrics for Prometheus: a listener of all queries of a session.

    from backfill.spark.prometheus import PrometheusListener

    listener = PrometheusListener()
    spark.streams.addListener(listener)
    listener.serve(port=9108)          # http://127.0.0.1:9108/metrics; or listener.text()

Spark calls the listener when a batch has ended, and about every ten seconds while there is nothing to read. The labels
are the query's id and name, and the table (numbered where several have one name). Nothing here comes from a row, from
options or from a URL.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from uuid import UUID

from pyspark.sql.streaming.listener import StreamingQueryListener

from backfill.metrics.exposition import Metric, Sample, exposition
from backfill.metrics.server import LOOPBACK, MetricsServer
from backfill.progress import PHASES
from backfill.reported import Reported
from backfill.spark.monitor import reads, reports

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

MOST_ENDED: Final = 100
"""Of how many queries that have ended the metrics are kept."""

PHASE = Metric("backfill_phase", "gauge", "1 for the phase the stream is in, 0 for the others.")
SNAPSHOT_ROWS = Metric("backfill_snapshot_rows_total", "counter", "Rows read from the table, since the stream began.")
ROWS_LEFT = Metric("backfill_snapshot_rows_left", "gauge", "About how many rows of the table are still to be read.")
VNODES = Metric("backfill_vnodes", "gauge", "The parts the table's key space was cut into.")
COMPLETED = Metric("backfill_vnodes_completed", "gauge", "The parts of which all rows have been read.")
CONTROL_ROWS = Metric(
    "backfill_control_rows",
    "gauge",
    "How many rows of the table a batch may read, where somebody throttled the stream; 0 while it is paused.",
)
AGAIN_ROWS = Metric("backfill_again_rows", "gauge", "Rows read again for the request that is under way, or was last.")
AGAIN_VNODES = Metric("backfill_again_vnodes", "gauge", "The parts that what it asks for was cut into.")
AGAIN_COMPLETED = Metric("backfill_again_vnodes_completed", "gauge", "Those of them that have been read.")
PASSED_ON = Metric(
    "backfill_changes_passed_on_total",
    "counter",
    "Changes that were emitted, up to the batch before the last, since the stream began or its counts were lost.",
)
HELD_BACK = Metric(
    "backfill_changes_held_back_total",
    "counter",
    "Changes left out because the snapshot has or will have them, up to the batch before the last, since the stream "
    "began or its counts were lost.",
)
INPUT_ROWS = Metric(
    "backfill_input_rows_total",
    "counter",
    "Rows of all kinds that Spark has read from the source since this listener was made, but for batches run again.",
)
LAG_BYTES = Metric("backfill_lag_bytes", "gauge", "How much log was written after what the last batch has.")
LAG_SECONDS = Metric(
    "backfill_lag_seconds",
    "gauge",
    "How many seconds the stream was behind when the last batch ended; 0 when idle.",
)
RETAINED = Metric("backfill_wal_retained_bytes", "gauge", "How much log the database keeps for the replication slot.")
STATE_ROWS = Metric(
    "backfill_state_rows", "gauge", "Keys of which the last row is kept, with changelog=full or envelope=upsert."
)
STATE_FILE = Metric("backfill_state_file_bytes", "gauge", "The size of the file that they are kept in.")
BATCHES = Metric("backfill_batches_total", "counter", "Batches that have ended, since this listener was made.")
DURATION = Metric("backfill_last_batch_duration_seconds", "gauge", "How long the last batch took.")
ACTIVE = Metric("backfill_query_active", "gauge", "1 while the query runs, 0 when it has ended.")
FAILED = Metric("backfill_query_failed", "gauge", "1 where the query has ended with an error.")
HEARD = Metric("backfill_last_heard_timestamp_seconds", "gauge", "When Spark last told of the query, since 1970.")


@dataclass(slots=True)
class _Table:
    """What is known of one table of a query."""

    reported: Reported
    input_rows: int = 0
    lag_bytes: float | None = None
    lag_seconds: float | None = None


@dataclass(slots=True)
class _Query:
    id: str
    name: str
    heard: float = 0.0
    batches: int = 0
    duration: float = 0.0
    active: bool = True
    failed: bool = False
    tables: dict[str, _Table] = field(default_factory=dict)

    def hear(self) -> None:
        """It runs."""
        self.heard, self.active, self.failed = time.time(), True, False

    def samples(self) -> Iterator[Sample]:
        own = {"query_id": self.id, "query": self.name}
        for metric, value in (
            (BATCHES, self.batches),
            (DURATION, self.duration),
            (ACTIVE, int(self.active)),
            (FAILED, int(self.failed)),
            (HEARD, self.heard),
        ):
            yield Sample(metric, value, own)
        for name, table in self.tables.items():
            yield from _samples(table, {**own, "table": name})


def _samples(table: _Table, labels: dict[str, str]) -> Iterator[Sample]:
    of = table.reported
    for phase in PHASES:
        yield Sample(PHASE, int(of.phase == phase), {**labels, "phase": phase})
    for metric, value in (
        (SNAPSHOT_ROWS, of.snapshot_rows),
        (ROWS_LEFT, of.snapshot_rows_left),
        (VNODES, of.vnodes),
        (COMPLETED, of.vnodes_completed),
        (CONTROL_ROWS, of.control_rows),
        (AGAIN_ROWS, of.again_rows),
        (AGAIN_VNODES, of.again_vnodes),
        (AGAIN_COMPLETED, of.again_vnodes_completed),
        (PASSED_ON, of.changes_passed_on),
        (HELD_BACK, of.changes_held_back),
        (INPUT_ROWS, table.input_rows),
        (LAG_BYTES, table.lag_bytes),
        (LAG_SECONDS, table.lag_seconds),
        (RETAINED, of.retained_bytes),
        (STATE_ROWS, of.state_rows),
        (STATE_FILE, of.state_file_bytes),
    ):
        if value is not None:
            yield Sample(metric, value, labels)


class PrometheusListener(StreamingQueryListener):
    """Add it with `spark.streams.addListener`; it covers the queries that read from the backfill source."""

    def __init__(self) -> None:
        super().__init__()
        self._queries: dict[str, _Query] = {}
        self._runs: dict[str, UUID] = {}
        """The run of each query that was started last, until it has ended. Spark tells of a start at once, and of what
        happened before it maybe later."""

        self._lock = threading.Lock()
        self._server: MetricsServer | None = None

    def text(self) -> str:
        """All metrics in Prometheus' text format."""
        with self._lock:
            samples = [sample for query in self._queries.values() for sample in query.samples()]
        return exposition(samples)

    def serve(self, port: int = 0, *, host: str = LOOPBACK) -> int:
        """Serves the metrics at `/metrics` until `close`; returns the port, a free one for 0.

        There is no encryption and no password, so it listens on this machine only unless `host` says otherwise.
        """
        self.close()
        self._server = MetricsServer(self.text, port=port, host=host)
        return self._server.port

    def close(self) -> None:
        """Stops serving."""
        if self._server is not None:
            self._server.close()
        self._server = None

    # -- what Spark calls ------------------------------------------------------------------------------------------

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """A query that has ended runs again; of others only progress tells what they read."""
        with self._lock:
            self._runs[str(event.id)] = event.runId
            query = self._queries.get(str(event.id))
            if query is not None:
                query.hear()

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        of = event.progress
        found = reports(of)
        if not found and not reads(of):
            return
        with self._lock:
            query = self._queries.setdefault(str(of.id), _Query(str(of.id), ""))
            query.name = of.name or ""
            query.hear()
            query.batches += 1
            query.duration = of.batchDuration / 1000
            if found:  # A table that was renamed goes on under its new name.
                query.tables = {name: query.tables[name] for _, said in found if (name := said.table) in query.tables}
            for source, reported in found:
                table = query.tables.setdefault(reported.table, _Table(reported))
                table.reported = reported
                table.input_rows += source.numInputRows
                table.lag_bytes = reported.lag_bytes
                # The source reported this when the batch was planned; the sink has its rows only now.
                table.lag_seconds = None if reported.lag_seconds is None else reported.lag_seconds + query.duration

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        with self._lock:
            query = self._queries.get(str(event.id))
            if query is None:
                return
            query.hear()
            for table in query.tables.values():
                table.lag_bytes = None if table.lag_bytes is None else 0
                table.lag_seconds = None if table.lag_seconds is None else 0

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        with self._lock:
            query_id = str(event.id)
            if self._runs.get(query_id, event.runId) != event.runId:
                return
            self._runs.pop(query_id, None)
            query = self._queries.pop(query_id, None)
            if query is None:
                return
            query.heard, query.active, query.failed = time.time(), False, event.exception is not None
            self._queries[query.id] = query  # To the end: those that ended first are forgotten first.
            ended = [each.id for each in self._queries.values() if not each.active]
            for forgotten in ended[:-MOST_ENDED]:
                del self._queries[forgotten]
