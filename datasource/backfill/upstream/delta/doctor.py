"""What would keep a stream over a Delta table from beginning, or surprise it later. Changes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable

from backfill.errors import BackfillError
from backfill.options import Options, StartupMode
from backfill.upstream.delta.failures import translating
from backfill.upstream.delta.files.statistics import statistics
from backfill.upstream.delta.snapshot.conditions import require_row_condition
from backfill.upstream.delta.snapshot.scan import scanned
from backfill.upstream.delta.tables.opening import open_latest
from backfill.upstream.delta.tables.properties import enable_feed, has_feed, require_readable, require_unmapped
from backfill.upstream.delta.tables.table import described
from backfill.upstream.findings import Finding, refused

_RETENTION: Final = {"delta.logRetentionDuration": "30 days", "delta.deletedFileRetentionDuration": "1 week"}


def examine(options: Options) -> tuple[Finding, ...]:
    """Everything that is found."""
    try:
        table = open_latest(options.path)
        with translating(options.path):
            found = list(_found(table, options))
    except BackfillError as error:
        found = [Finding(error.message)]
    return tuple(found)


def _found(table: DeltaTable, options: Options) -> Iterator[Finding]:
    yield from refused(require_readable, table, options.path)
    is_described = (yield from refused(described, table, options)) is not None
    yield from refused(require_row_condition, table, "snapshotFilter", options.stream.snapshot_filter)
    yield from _nulls(table, options)
    if is_described and options.stream.startup_mode is not StartupMode.LATEST:
        yield from refused(_require_rows, table, options)
    if options.stream.only_snapshot:
        return
    properties = table.metadata().configuration
    yield from refused(require_unmapped, properties, options.path)
    if not has_feed(properties):
        yield Finding("the change data feed is off, so changes cannot be followed", enable_feed(options.path))
    yield from _kept(properties, options.path)


def _require_rows(table: DeltaTable, options: Options) -> None:
    """Refuses a table that `deltalake` opens, but does not read rows of."""
    with translating(options.path):
        scanned(table, options.key_columns, None, most=0)


def _nulls(table: DeltaTable, options: Options) -> Iterator[Finding]:
    """Key columns that are null in some rows, by the files' statistics. These may be missing, and count rows that a
    deletion vector deletes. Rows are not looked at.
    """
    actions = pa.table(table.get_add_actions(flatten=True))
    known = "deletionVectors" not in (table.protocol().reader_features or ())
    for name in options.key_columns:
        [counts] = statistics(table, actions, name, "null_count")
        if counts is None or not any(counts.to_pylist()):
            continue
        if known:
            yield Finding(f"the key column {name} is null in some rows; delete or fill them, or name another key")
        else:
            yield Finding(
                f"the key column {name} is null in some rows of the table's files; unless deletion vectors delete all "
                "of them, a stream would not begin: delete or fill those rows, or name another key",
                refuses=False,
            )


def _kept(properties: Mapping[str, Any], uri: str) -> Iterator[Finding]:
    kept = {name: str(properties.get(name) or default) for name, default in _RETENTION.items()}
    longer = ", ".join(f"'{name}' = 'interval 60 days'" for name in kept)
    durations = " and ".join(f"{name} is {re.sub('^interval ', '', value)}" for name, value in kept.items())
    yield Finding(
        f"{durations}: after a stop of more than the shorter of the two, changes may be gone",
        f"ALTER TABLE delta.`{uri}` SET TBLPROPERTIES ({longer})",
        refuses=False,
    )
