"""From options to the objects that do the work."""

from __future__ import annotations

from pathlib import Path

from backfill.errors import OptionsError, StateError
from backfill.options import Options
from backfill.record import Record, monotonic
from backfill.staging import Staging
from backfill.stream import Stream
from backfill.upstream import Upstream
from backfill_state import DuckDBProgressStore

STATE_FILE = "backfill.duckdb"


def open_upstream(options: Options) -> Upstream:
    """The adapter for what the options name; its driver is imported here, not before."""
    try:
        from backfill.upstream.postgres import PostgresUpstream  # noqa: PLC0415
    except ImportError as error:
        raise OptionsError(
            f"reading PostgreSQL needs the package {error.name}; run pip install 'pyspark-backfill[postgres]' on the "
            "driver and on every executor"
        ) from error
    return PostgresUpstream.of(options)


def open_stream(options: Options) -> Stream:
    """The stream as its driver sees it."""
    folder = Path(options.state_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StateError(f"stateDir cannot be made: {error}") from error
    record = Record(
        lambda: DuckDBProgressStore(folder / STATE_FILE), options.stream.on_existing_state, clock=monotonic
    )
    return Stream(open_upstream(options), record, Staging(options.staging_dir), options.stream)
