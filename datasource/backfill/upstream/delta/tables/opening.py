"""Opening a Delta table at its latest version or at another one, and whether it is still the same table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import numpy as np
from deltalake import DeltaTable

from backfill.errors import DataLossError, FileGoneError, TableError, UnknownFeatureError
from backfill.upstream.delta.failures import translating
from backfill.upstream.delta.files.commits import Commit
from backfill.upstream.delta.files.log import Log
from backfill.upstream.delta.position import Position
from backfill.upstream.delta.tables.ways_out import KEEP_LONGER, START_OVER

_MOST_LISTED: Final = 5
"""How often a log is listed at the most to open a table."""


@contextmanager
def reading(uri: str, versions: str, way_out: str) -> Iterator[None]:
    """Raises the errors of what reads rows of these versions as ours: DataLossError where files of theirs are gone."""
    try:
        with translating(uri):
            yield
    except FileGoneError as error:
        raise DataLossError(
            f"files of version {versions} of the Delta table {uri} are gone ({error}): VACUUM has removed them before "
            f"they were read. {way_out}"
        ) from None


def open_latest(uri: str) -> DeltaTable:
    """The table as it is now."""
    return _opened(uri, None)


def _opened(uri: str, version: int | None) -> DeltaTable:
    """The table at this version, or the latest. Tried again, as a log that is cleaned up meanwhile loses listed files,
    but then has a later checkpoint.
    """
    for _ in range(_MOST_LISTED - 1):
        with suppress(FileGoneError), translating(uri):
            return DeltaTable(uri, version=version)
    with translating(uri):
        return DeltaTable(uri, version=version)


def open_at(uri: str, position: Position, *, way_out: str = f"{START_OVER}; {KEEP_LONGER}") -> DeltaTable:
    """The table at this version; DataLossError where the version is gone, or is one of another table, and
    UnknownFeatureError where it is there and `deltalake` does not know something that it uses.

    `way_out` says what can be done where its log was cleaned up.
    """
    try:
        table = _opened(uri, position.version)
    except UnknownFeatureError as error:
        raise UnknownFeatureError(f"version {position.version} cannot be read here: {error}") from None
    except (FileGoneError, TableError) as error:
        latest = open_latest(uri)
        require_same_table(latest, uri, position.table_id)
        require_not_older(latest, uri, position)
        raise DataLossError(
            f"version {position.version} of the Delta table {uri} is no longer available, because its log was cleaned "
            f"up ({error}). {way_out}"
        ) from None
    require_same_table(table, uri, position.table_id)
    return table


def open_if_kept(uri: str, position: Position) -> DeltaTable | None:
    """As `open_at`, but None where that raises DataLossError or TableError."""
    try:
        return open_at(uri, position)
    except (DataLossError, TableError):
        return None


def require_same_table(table: DeltaTable, uri: str, table_id: str, *, way_out: str = START_OVER) -> None:
    """Raises DataLossError where the table is another one; `way_out` says what can be done, by default by a stream."""
    found = str(table.metadata().id)
    if found != table_id:
        raise DataLossError(
            f"the Delta table {uri} was deleted and made again: the table that was read has id {table_id}, and the "
            f"present one has id {found}; or a MERGE of deltalake with merge_schema gave it another id. {way_out}"
        )


def require_not_older(table: DeltaTable, uri: str, position: Position) -> None:
    if table.version() < position.version:
        raise DataLossError(
            f"the stream has read version {position.version} of the Delta table {uri}, and its log ends with version "
            f"{table.version()}: an older copy of the table was restored. {START_OVER}"
        )


def require_same_history(table: DeltaTable, uri: str, position: Position, timestamp: int) -> None:
    """Refuses a log that ends before the version that the stream has read, or whose commit of that version is of
    another time than `timestamp`.

    A copy of the table's folder has the same commits, at the same times by what they say themselves; their files may
    have other times. A commit that the log no longer has, or that does not say its time, is taken for the same.
    """
    require_not_older(table, uri, position)
    with translating(uri):
        found = Log(table).commit(position.version)
    if found is not None:
        require_same_commit(found, uri, timestamp)


def require_same_commit(found: Commit, uri: str, timestamp: int) -> None:
    """Refuses a commit of another time, if it says its time."""
    if found.dated and found.timestamp != timestamp:
        raise DataLossError(
            f"the stream has read version {found.version} of the Delta table {uri}, which was committed at "
            f"{_format_time(timestamp)}, and the present one was committed at {_format_time(found.timestamp)}: an "
            f"older copy of the table was restored and written to since. {START_OVER}"
        )


def _format_time(timestamp: int) -> str:
    return f"{np.datetime64(timestamp // 1000, 'ms')} UTC"
