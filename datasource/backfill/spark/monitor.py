"""Where a running query is, for notebooks and code: `from backfill.spark.monitor import progress`.

It asks nothing but Spark's own record of the query's batches, so it needs neither the database nor `stateDir`, costs
the query nothing, and works through Spark Connect. The name `backfill.progress` belongs to a module, the life of
vnodes, and what concerns a query of Spark is in `backfill.spark`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from backfill.errors import OffsetError
from backfill.offset import from_text
from backfill.reported import SourceReport, StreamProgress, distinctly_named

if TYPE_CHECKING:
    from pyspark.sql.connect.streaming.query import StreamingQuery as ConnectStreamingQuery
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

    Query: TypeAlias = StreamingQuery | ConnectStreamingQuery

__all__ = ["StreamProgress", "progress", "reads", "reports"]

_LONGER: Final = 2
"""Finding the next batch may take so many times as long as finding the last one."""

_SHORTEST_WAIT: Final = 1.0
"""Seconds that it may take in addition."""


def progress(query: Query, *, table: str = "") -> StreamProgress:
    """Where the query is. If it reads several tables, `table` names one of them, as its progress shows the name: the
    second of two tables with one name is `name#2`, in the order of Spark's `sources`.

    Spark records its progress at the end of a batch and, about every ten seconds, that there was nothing to read.
    Raises ValueError if the query reads nothing from this source, or reads several tables and `table` names none.
    """
    recent = query.recentProgress
    if recent and not reads(recent[-1]):
        raise ValueError("the query reads nothing from the backfill source")
    reported = [(_seconds(each), [report for _, report in found]) for each in recent if (found := reports(each))]
    of = _chosen(reported[-1][1], table) if reported else None
    began = [(at, report) for at, found in reported for report in found if of and report.table == of.table]
    waits = bool(recent) and _waits(query, recent[-1])
    return StreamProgress(
        query=query.name or str(query.id),
        active=query.isActive,
        batch=next((each.batchId for each in reversed(recent) if "addBatch" in each.durationMs), None),
        reported=of,
        rows_per_second=None if waits or (of is not None and of.control_rows == 0) else _rate(began),
        lag_seconds=_lag(of, began, waits=waits),
    )


def reports(of: StreamingQueryProgress) -> list[tuple[Any, SourceReport]]:
    """Our sources in a query's progress, in Spark's order, each with what it reported, under distinct table names.

    Spark asks all of them for each batch that it plans, so each keeps its name from batch to batch. For one that it
    runs again after a restart it asks none of them, and nothing is reported.
    """
    asked = [(source, SourceReport.of(source.latestOffset)) for source in of.sources]
    found = [(source, report) for source, report in asked if report is not None]
    return list(zip([source for source, _ in found], distinctly_named(report for _, report in found), strict=True))


def reads(of: StreamingQueryProgress) -> bool:
    """Whether the batch is of a query that reads from this source, as its reports or its offsets show."""
    return bool(reports(of)) or any(_is_ours(source.endOffset) for source in of.sources)


def _is_ours(offset: str | None) -> bool:
    try:
        from_text(offset or "null")
    except OffsetError:
        return False
    return True


def _chosen(found: Sequence[SourceReport], table: str) -> SourceReport:
    named = [report for report in found if table in ("", report.table)]
    if len(named) == 1:
        return named[0]
    tables = ", ".join(report.table for report in found)
    raise ValueError(f"the query reads {tables}; name one of them as table")


def _waits(query: Query, last: StreamingQueryProgress) -> bool:
    """Whether the query has nothing to read, as far as Spark tells.

    It says that no data is available also while it looks for the next batch. So this is believed only when it has been
    so for longer than finding a batch takes, going by the last one.
    """
    if not query.isActive or query.status["isDataAvailable"]:
        return False
    if "addBatch" not in last.durationMs:
        return True
    looked = (last.batchDuration - last.durationMs["addBatch"]) / 1000
    return _now() - (_seconds(last) + last.batchDuration / 1000) > _LONGER * looked + _SHORTEST_WAIT


def _rate(began: Sequence[tuple[float, SourceReport]]) -> float | None:
    """Snapshot rows a second between the batches that Spark remembers, while the snapshot is read."""
    if len(began) < 2 or began[-1][1].phase != "snapshot":
        return None
    seconds, rows = began[-1][0] - began[0][0], began[-1][1].snapshot_rows - began[0][1].snapshot_rows
    return rows / seconds if seconds > 0 and rows > 0 else None


def _lag(of: SourceReport | None, began: Sequence[tuple[float, SourceReport]], *, waits: bool) -> float | None:
    """The lag that the source reported, and the time since then: Spark reports nothing about later looks that found no
    changes.
    """
    if of is None or of.lag_seconds is None:
        return None
    return 0.0 if waits else of.lag_seconds + max(0.0, _now() - began[-1][0])


def _now() -> float:
    """The time in seconds since 1970."""
    return datetime.now(UTC).timestamp()


def _seconds(of: StreamingQueryProgress) -> float:
    """When the batch began, in seconds since 1970."""
    return datetime.fromisoformat(of.timestamp).timestamp()
