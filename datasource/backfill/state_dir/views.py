"""What can be read of a stream's state while it runs, as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from backfill.errors import StateError
from backfill.offset import Barrier
from backfill.options import View
from backfill.progress import figures
from backfill.state_dir import recorded
from backfill.state_dir.failures import as_ours
from backfill.state_dir.files import STATE_FILE
from backfill_state import ProgressStore, StreamIdentity, looked_at, stored_names

_FIGURES: Final[tuple[tuple[str, pa.DataType], ...]] = (
    ("stream", pa.string()),
    ("table", pa.string()),
    ("phase", pa.string()),
    ("epoch", pa.int64()),
    ("as_of", pa.timestamp("us", tz="UTC")),
    ("snapshot_rows", pa.int64()),
    ("vnodes", pa.int32()),
    ("vnodes_completed", pa.int32()),
    ("again_rows", pa.int64()),
    ("again_vnodes", pa.int32()),
    ("again_vnodes_completed", pa.int32()),
)
SUMMARY: Final = pa.schema(_FIGURES)


def look(view: View, folder: Path) -> pa.Table:
    """The view of the stream that keeps its state in this folder, as of its last recorded barrier."""
    with looking(folder) as store:
        return _progress(store) if view is View.PROGRESS else _summary(store)


@contextmanager
def looking(folder: Path) -> Iterator[ProgressStore]:
    """What the stream with this folder has recorded last; a running stream does not notice the look."""
    try:
        with as_ours(), looked_at(folder / STATE_FILE) as store:
            yield store
    except FileNotFoundError:
        raise StateError(f"there is no {STATE_FILE} in {folder}; expected the stateDir of a stream") from None


def standing(folder: Path) -> tuple[StreamIdentity, Barrier | None]:
    """The stream that keeps its state in this folder, and the last barrier that it has recorded, if any."""
    with looking(folder) as store:
        identity, barrier = store.identity(), recorded.barrier(store)
    if identity is None:
        raise StateError(f"the state in {folder} has no stream yet; try again when the query has begun")
    return identity, barrier


def _progress(store: ProgressStore) -> pa.Table:
    """The progress under the names that the columns have in the file, which no two of them share."""
    rows = store.progress()
    first, *key, finished, counted = rows.column_names
    return rows.rename_columns([first, *stored_names(key), finished, counted])


def _summary(store: ProgressStore) -> pa.Table:
    """One row, or none where no stream has begun."""
    identity, barrier = store.identity(), recorded.barrier(store)
    if identity is None:
        return SUMMARY.empty_table()
    row: Mapping[str, Any] = {"stream": identity.stream_id, "table": identity.table, "phase": "starting"}
    if barrier is not None:
        epoch = barrier.epoch
        row = {**row, **figures(barrier.progress, barrier.again), "epoch": epoch.number, "as_of": epoch.timestamp}
    return pa.Table.from_pylist([row], schema=SUMMARY)
