"""From options to the objects that do the work."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from backfill.control_file import read_control
from backfill.counts import Counting
from backfill.counts_file import keep_counts, read_counts
from backfill.errors import OptionsError, StateError
from backfill.options import Options
from backfill.record import Record
from backfill.rows import RowFormat
from backfill.staging import Staging
from backfill.stream import Stream
from backfill.upsert import LastRows, Rules
from backfill.upstream import Finding, Upstream
from backfill_state import DuckDBProgressStore
from backfill_state.upsert import DuckDBUpsertState, UpsertLayout, UpsertState

DELTA = "delta"
"""What a stream over a Delta table has recorded as its upstream."""

STATE_FILE = "backfill.duckdb"
LAST_ROWS_FILE = "upsert.duckdb"


def open_upstream(options: Options, *, patience: float | None = None) -> Upstream:
    """The adapter for what the options name; its driver is imported here, not before.

    `patience`: for how many seconds a failure that may pass is tried again (default: the adapter's own).
    """
    if options.path:
        return _open_delta(options)
    try:
        from backfill.upstream.postgres import PostgresUpstream  # noqa: PLC0415
        from backfill.upstream.postgres.failures import RetryPolicy  # noqa: PLC0415
    except ImportError as error:
        raise OptionsError(
            f"reading PostgreSQL needs the package {error.name}; run pip install 'pyspark-backfill[postgres]' on the "
            "driver and on every executor"
        ) from error
    return PostgresUpstream.of(options, RetryPolicy() if patience is None else RetryPolicy(give_up_after=patience))


def _open_delta(options: Options) -> Upstream:
    try:
        from backfill.upstream.delta import DeltaUpstream  # noqa: PLC0415
    except ImportError as error:
        raise OptionsError(
            f"reading a Delta table needs the package {error.name}; run pip install 'pyspark-backfill[delta]' on the "
            "driver and on every executor"
        ) from error
    return DeltaUpstream(options)


def examine(options: Options) -> tuple[Finding, ...]:
    """What would keep a stream with these options from beginning, or surprise it; changes nothing."""
    open_upstream(options).close()  # For the error where the adapter's packages are missing.
    if options.path:
        from backfill.upstream.delta.doctor import examine as examine_delta  # noqa: PLC0415

        return examine_delta(options)
    from backfill.upstream.postgres.connection import Connector  # noqa: PLC0415
    from backfill.upstream.postgres.doctor import examine  # noqa: PLC0415

    connector = Connector.of(
        options.url, user=options.user, password=options.password, init_statement=options.session_init_statement
    )
    return examine(connector, options)


def source_of(upstream: str, table: str, key: Sequence[str], *, url: str, user: str) -> dict[str, str]:
    """The options that name the source of a stream, from what is recorded of it; a Delta table needs no `url`."""
    if upstream == DELTA:
        return {"path": table, "keyColumns": ", ".join(key)}
    return {"url": url, "user": user, "dbtable": table}


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
        raise StateError(f"stateDir cannot be made: {error}") from error
    record = Record(
        lambda: open_store(options.state_dir),
        options.stream.on_existing_state,
        clock=time.monotonic,
        snapshot_filter=options.stream.snapshot_filter,
    )
    return Stream(
        open_upstream(options),
        record,
        Staging(options.staging_dir),
        options.stream,
        open_last_rows=(lambda rows: open_last_rows(options, rows)) if options.last_rows.kept else None,
        read_control=lambda: read_control(Path(options.state_dir)),
        counting=Counting(
            lambda: read_counts(Path(options.state_dir)), lambda counts: keep_counts(Path(options.state_dir), counts)
        ),
    )
