"""The metrics of a session's streams, each listed by the name of the figure that it shows."""

from __future__ import annotations

from typing import Final

from backfill.metrics.exposition import Metric

PHASE: Final = Metric("backfill_phase", "gauge", "1 for the phase the stream is in, 0 for the others.")
ACTIVE: Final = Metric("backfill_query_active", "gauge", "1 while the query runs, 0 when it has ended.")
FAILED: Final = Metric("backfill_query_failed", "gauge", "1 where the query has ended with an error.")

OF_SOURCE: Final = {
    "snapshot_rows": Metric(
        "backfill_snapshot_rows_total", "counter", "Rows read from the table, since the stream began."
    ),
    "snapshot_rows_left": Metric(
        "backfill_snapshot_rows_left", "gauge", "About how many rows of the table are still to be read."
    ),
    "vnodes": Metric("backfill_vnodes", "gauge", "The parts the table's key space was cut into."),
    "vnodes_completed": Metric("backfill_vnodes_completed", "gauge", "The parts of which all rows have been read."),
    "control_rows": Metric(
        "backfill_control_rows",
        "gauge",
        "How many rows of the table a batch may read, where somebody throttled the stream, 0 where it was paused; as "
        "of the last batch.",
    ),
    "again_rows": Metric(
        "backfill_again_rows", "gauge", "Rows read again for the request that is under way, or was last."
    ),
    "again_vnodes": Metric("backfill_again_vnodes", "gauge", "The parts that what it asks for was cut into."),
    "again_vnodes_completed": Metric("backfill_again_vnodes_completed", "gauge", "Those of them that have been read."),
    "changes_passed_on": Metric(
        "backfill_changes_passed_on_total",
        "counter",
        "Changes that were emitted, up to the batch before the last, since the stream began or its counts were lost.",
    ),
    "changes_held_back": Metric(
        "backfill_changes_held_back_total",
        "counter",
        "Changes left out because the snapshot has or will have them, up to the batch before the last, since the "
        "stream began or its counts were lost.",
    ),
    "retained_bytes": Metric(
        "backfill_wal_retained_bytes", "gauge", "How much log the database keeps for the replication slot."
    ),
    "state_rows": Metric(
        "backfill_state_rows", "gauge", "Keys of which the last row is kept, with changelog=full or envelope=upsert."
    ),
    "state_file_bytes": Metric("backfill_state_file_bytes", "gauge", "The size of the file that they are kept in."),
}
"""Metrics of what the source of one table reports, by the fields of `SourceReport`."""

OF_TABLE: Final = {
    "input_rows": Metric(
        "backfill_input_rows_total",
        "counter",
        "Rows of all kinds that Spark has read from the source since this listener was made, but for batches run "
        "again.",
    ),
    "lag_bytes": Metric("backfill_lag_bytes", "gauge", "How much log was written after what the last batch has."),
    "lag_seconds": Metric(
        "backfill_lag_seconds",
        "gauge",
        "How many seconds the stream was behind when the last batch ended; 0 when idle.",
    ),
}
"""Further metrics of one table of a query."""

OF_QUERY: Final = {
    "batches": Metric("backfill_batches_total", "counter", "Batches that have ended, since this listener was made."),
    "duration": Metric("backfill_last_batch_duration_seconds", "gauge", "How long the last batch took."),
    "heard": Metric("backfill_last_heard_timestamp_seconds", "gauge", "When Spark last told of the query, since 1970."),
}
"""Metrics of a query as a whole."""
