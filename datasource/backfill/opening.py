"""From options to a stream, with its state store: for the driver, and nobody else."""

from __future__ import annotations

import time
from pathlib import Path

from backfill.adapters import open_upstream
from backfill.control_file import read_control
from backfill.counts import Counting
from backfill.counts_file import keep_counts, read_counts
from backfill.errors import StateError
from backfill.options import Options
from backfill.record import Record
from backfill.rows import RowFormat
from backfill.staging import Staging
from backfill.stream import Stream
from backfill.upsert import LastRows
from backfill.whole_rows import Rules
from backfill.wording import unusable
from backfill_state import DuckDBProgressStore
from backfill_state.upsert import DuckDBUpsertState, UpsertLayout, UpsertState

STATE_FILE = "backfill.duckdb"
LAST_ROWS_FILE = "upsert.duckdb"


def open_store(state_dir: str) -> DuckDBProgressStore:
    """The state store in this folder, which has to exist."""
    return DuckDBProgressStore(Path(state_dir) / STATE_FILE)


def open_last_rows(options: Options, rows: RowFormat) -> LastRows:
    """What changes are completed from, beside the stream's progress; opens no file yet."""
    chosen = options.last_rows
    path = Path(options.state_dir) / LAST_ROWS_FILE

    def open_state(layout: UpsertLayout) -> UpsertState:
        # Without an order of their own, changes come in the log's order, and nothing older can come after a deletion.
        tombstones = bool(chosen.order_column)
        return DuckDBUpsertState(path, layout, tombstones=tombstones, memory_limit=f"{chosen.memory}B")

    return LastRows(open_state, rows, Rules(skips_equal=chosen.upsert, order_column=chosen.order_column))


def open_stream(options: Options) -> Stream:
    """The stream as its driver sees it."""
    try:
        Path(options.state_dir).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StateError(unusable("stateDir", "made", error)) from error
    upstream = open_upstream(options)
    return Stream(
        upstream,
        Record(
            upstream,
            lambda: open_store(options.state_dir),
            options.stream,
            clock=time.monotonic,
            keeps_last_rows=options.last_rows.kept,
        ),
        Staging(options.staging_dir),
        options.stream,
        open_last_rows=(lambda rows: open_last_rows(options, rows)) if options.last_rows.kept else None,
        read_control=lambda: read_control(Path(options.state_dir)),
        counting=Counting(
            lambda: read_counts(Path(options.state_dir)), lambda counts: keep_counts(Path(options.state_dir), counts)
        ),
    )
