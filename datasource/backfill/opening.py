"""From options to a stream, with what it keeps in its state directory. For the driver alone."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from backfill.adapters import open_upstream
from backfill.counts import ChangeCounter
from backfill.durable import make_folder
from backfill.errors import StateError
from backfill.options import LastRowsOptions, Options
from backfill.rows import RowFormat
from backfill.staging import Staging
from backfill.state_dir import control_file, counts_file
from backfill.state_dir.files import LAST_ROWS_FILE, open_store
from backfill.state_dir.record import Record
from backfill.stream import Stream
from backfill.whole_rows.completing import Rules
from backfill.whole_rows.last_rows import LastRows
from backfill.wording import unusable
from backfill_state.upsert import DuckDBUpsertState, UpsertLayout, UpsertState


def open_last_rows(path: Path, chosen: LastRowsOptions, rows: RowFormat) -> LastRows:
    """The last rows that changes are completed from, kept in this file, which is opened later."""

    def open_state(layout: UpsertLayout) -> UpsertState:
        # Without an order of their own, changes come in the log's order, and nothing older can come after a deletion.
        tombstones = bool(chosen.order_column)
        return DuckDBUpsertState(path, layout, tombstones=tombstones, memory_limit=f"{chosen.memory}B")

    return LastRows(open_state, rows, Rules(skips_equal=chosen.upsert, order_column=chosen.order_column))


def open_stream(options: Options) -> Stream:
    """The stream as its driver sees it."""
    folder, last_rows = Path(options.state_dir), options.stream.last_rows
    try:
        make_folder(folder)
    except OSError as error:
        raise StateError(unusable("stateDir", "made", error)) from error
    upstream = open_upstream(options)
    return Stream(
        upstream,
        Record(upstream, partial(open_store, folder), options.stream, clock=time.monotonic),
        Staging(options.staging_dir),
        options.stream,
        open_last_rows=None if last_rows is None else partial(open_last_rows, folder / LAST_ROWS_FILE, last_rows),
        read_control=partial(control_file.read_control, folder),
        counting=ChangeCounter(partial(counts_file.read_counts, folder), partial(counts_file.keep_counts, folder)),
    )
