"""From options to a stream, with its state store; what lies in a state directory. For the driver, and nobody else."""

from __future__ import annotations

import shutil
import time
from functools import partial
from pathlib import Path

from backfill.adapters import open_upstream
from backfill.counts import Counting
from backfill.errors import StateError
from backfill.options import LastRowsOptions, Options
from backfill.rows import RowFormat
from backfill.staging import Staging
from backfill.state_dir import claim, control_file, counts_file
from backfill.state_dir.record import Record
from backfill.state_dir.recorded import STATE_FILE
from backfill.stream import Stream
from backfill.whole_rows.last_rows import LastRows
from backfill.whole_rows.telling import Rules
from backfill.wording import unusable
from backfill_state import DuckDBProgressStore
from backfill_state.upsert import DuckDBUpsertState, UpsertLayout, UpsertState

LAST_ROWS_FILE = "upsert.duckdb"


def remove_state_files(folder: Path) -> None:
    """Removes all that a stream and its commands keep in a state directory but for staged files, and nothing else."""
    states = [f"{file}{log}" for file in (STATE_FILE, LAST_ROWS_FILE) for log in ("", ".wal")]
    for name in (*states, control_file.FILE, counts_file.FILE):
        (folder / name).unlink(missing_ok=True)
    # Where DuckDB puts what does not fit into memory. A query that was killed leaves it, for the next one to remove.
    shutil.rmtree(folder / f"{LAST_ROWS_FILE}.tmp", ignore_errors=True)
    # One that was killed while it made a state file may have left a second name of that, beside parts of other files.
    for name in (STATE_FILE, LAST_ROWS_FILE, control_file.FILE, counts_file.FILE):
        for left in folder.glob(f".{name}.*"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
    # Last: with them go the locks, and then what is here may be the next stream's.
    for name in (control_file.LOCK, claim.FILE):
        (folder / name).unlink(missing_ok=True)


def open_store(state_dir: str) -> DuckDBProgressStore:
    """The state store in this folder, which has to exist."""
    return DuckDBProgressStore(Path(state_dir) / STATE_FILE)


def open_last_rows(path: Path, chosen: LastRowsOptions, rows: RowFormat) -> LastRows:
    """What changes are completed from, in this file; opens it later."""

    def open_state(layout: UpsertLayout) -> UpsertState:
        # Without an order of their own, changes come in the log's order, and nothing older can come after a deletion.
        tombstones = bool(chosen.order_column)
        return DuckDBUpsertState(path, layout, tombstones=tombstones, memory_limit=f"{chosen.memory}B")

    return LastRows(open_state, rows, Rules(skips_equal=chosen.upsert, order_column=chosen.order_column))


def open_stream(options: Options) -> Stream:
    """The stream as its driver sees it."""
    folder, last_rows = Path(options.state_dir), options.stream.last_rows
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StateError(unusable("stateDir", "made", error)) from error
    upstream = open_upstream(options)
    return Stream(
        upstream,
        Record(upstream, partial(open_store, options.state_dir), options.stream, clock=time.monotonic),
        Staging(options.staging_dir),
        options.stream,
        open_last_rows=None if last_rows is None else partial(open_last_rows, folder / LAST_ROWS_FILE, last_rows),
        read_control=partial(control_file.read_control, folder),
        counting=Counting(partial(counts_file.read_counts, folder), partial(counts_file.keep_counts, folder)),
    )
