"""How much a batch takes: rows of the table, by a plan for which the upstream measures; and changes of a backlog."""

from __future__ import annotations

from typing import Final

from backfill.control import Control
from backfill.options import StreamOptions
from backfill.plan import Limits, plan
from backfill.progress import Frontier
from backfill.upstream import Pin, TableSize, Upstream

UNLIMITED: Final = 1 << 62
"""The budget of rows or changes where there is no limit."""

ENOUGH_CHANGES: Final = 2_000_000
"""How far batches of changes grow. Larger ones take no less time for each change, and a sink may hold all of a batch
in memory. It is also the default of maxRowsPerTrigger.
"""


def limits(size: TableSize, vnodes: int, max_rows: int | None, options: StreamOptions, control: Control) -> Limits:
    """What the next batch, of at most `max_rows` rows, may read of a table of this size with this many vnodes."""
    may_read, lanes = _may_read(max_rows, size.row_bytes, options, control), options.num_partitions
    vnode_rows = max(1, size.row_count // max(1, vnodes))
    # With a filter that lets few rows through, one batch must not look at the whole table.
    looked_at = max(lanes, may_read // vnode_rows) if options.snapshot_filter else None
    return Limits(max_rows=may_read, lanes=lanes, vnode_rows=vnode_rows, max_vnodes=looked_at)


def advance(upstream: Upstream, pin: Pin, frontier: Frontier, within: Limits) -> Frontier:
    """Where the vnodes stand after the next batch, within these limits, in the pinned state.

    Raises SnapshotGoneError where that state was lost while it was measured.
    """
    planning = plan(frontier, within)
    try:
        requests = next(planning)
        while True:
            requests = planning.send(upstream.measure(pin, requests))
    except StopIteration as done:
        result: Frontier = done.value
        return result


def grown(max_rows: int, worked_off: int) -> int:
    """How many changes a batch may take after `worked_off` batches in a row that took changes alone.

    Twice as many as the one before: else a writer that makes more changes in the time of a batch than a batch may take
    would hold up the snapshot for ever. But at most ENOUGH_CHANGES, or `max_rows` if that is more.
    """
    return min(max_rows << min(worked_off, ENOUGH_CHANGES.bit_length()), max(max_rows, ENOUGH_CHANGES))


def _may_read(max_rows: int | None, row_bytes: int, options: StreamOptions, control: Control) -> int:
    """How many rows one batch may read. A snapshot-only stream is a single batch, so it has no limit."""
    if options.only_snapshot:
        return UNLIMITED
    if max_rows is None:
        return control.rows_of(UNLIMITED)
    return control.rows_of(max(1, min(max_rows, options.max_bytes // max(1, row_bytes))))
