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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from uuid import UUID

from pyspark.sql.streaming.listener import StreamingQueryListener

from backfill.metrics.exposition import Metric, Sample, exposition
from backfill.metrics.listed import ACTIVE, FAILED, OF_QUERY, OF_SOURCE, OF_TABLE, PHASE
from backfill.metrics.server import LOOPBACK, MetricsServer
from backfill.progress import PHASES
from backfill.reported import SourceReport
from backfill.spark.monitor import reads, reports

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

MOST_ENDED: Final = 100
"""The metrics of so many ended queries are kept."""


@dataclass(slots=True)
class _Table:
    """What is known of one table of a query."""

    reported: SourceReport
    input_rows: int = 0
    lag_bytes: float | None = None
    lag_seconds: float | None = None

    def samples(self, labels: Mapping[str, str]) -> Iterator[Sample]:
        for phase in PHASES:
            yield Sample(PHASE, int(self.reported.phase == phase), {**labels, "phase": phase})
        yield from _figures(self.reported, OF_SOURCE, labels)
        yield from _figures(self, OF_TABLE, labels)


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
        """Notes that the query has just been heard of, and runs."""
        self.heard, self.active, self.failed = time.time(), True, False

    def samples(self) -> Iterator[Sample]:
        own = {"query_id": self.id, "query": self.name}
        yield from _figures(self, OF_QUERY, own)
        yield Sample(ACTIVE, int(self.active), own)
        yield Sample(FAILED, int(self.failed), own)
        for name, table in self.tables.items():
            yield from table.samples({**own, "table": name})


def _figures(of: object, metrics: Mapping[str, Metric], labels: Mapping[str, str]) -> Iterator[Sample]:
    """A sample of each metric, from the attribute of its name; none where that is None."""
    for name, metric in metrics.items():
        value = getattr(of, name)
        if value is not None:
            yield Sample(metric, value, labels)


class PrometheusListener(StreamingQueryListener):
    """Add it with `spark.streams.addListener`; it covers the queries that read from the backfill source."""

    def __init__(self) -> None:
        super().__init__()
        self._queries: dict[str, _Query] = {}
        self._runs: dict[str, UUID] = {}
        """The run of each query that was started last, until it has ended. Spark tells of a start at once, and perhaps
        only later of what happened before it."""

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
        """Notes that a query which had ended runs again; of other queries, only progress tells what they read."""
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
                names = [report.table for _, report in found]
                query.tables = {name: query.tables[name] for name in names if name in query.tables}
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
