"""Which version of a table is its latest one, and whether it still is: asked all the time, and mostly it is."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from deltalake import DeltaTable

from backfill.epoch import Epoch
from backfill.upstream.delta.failures import translating
from backfill.upstream.delta.files.log import FileStamp, Log
from backfill.upstream.delta.position import Position
from backfill.upstream.delta.tables.opening import (
    open_at,
    open_latest,
    require_same_history,
    require_same_table,
)
from backfill.upstream.delta.tables.table import Table, require_as_described

LOOK_INTERVAL: Final = 1.0
"""Seconds for which a table on an object store is taken to be as it was: a look is four requests, which cost money."""


@dataclass(frozen=True, slots=True)
class Head:
    """The latest version. `stamp` tells whether it still is that: another table may have come to the same path."""

    position: Position
    stamp: FileStamp | None
    table: DeltaTable

    def is_there(self, log: Log) -> bool:
        return self.stamp is not None and log.stamp(self.position.version) == self.stamp

    def is_latest(self, log: Log) -> bool:
        return self.is_there(log) and log.stamp(self.position.version + 1) is None


class LatestVersion:
    """Looks for the latest version of a table that is as `table` describes it, by its log."""

    def __init__(self, table: Table, log: Log) -> None:
        self._table, self._log = table, log
        self._seen: Head | None = None
        self._followed: Head | None = None
        """The last one that is known to go on from what the stream has read."""

        self._looked = 0.0
        self.looked_at = 0
        """When the latest version was looked for last, by the wall clock, in microseconds."""

    def head(self) -> Head:
        """The latest version. While nothing happens this takes two looks at files."""
        with translating(self._table.uri):
            if self._seen is None or not self._is_still(self._seen):
                self._seen = self._found(self._seen)
            return self._seen

    def head_after(self, after: Epoch | None) -> Head:
        """As `head`; refuses a table whose log does not go on from the commit that `after` is at."""
        head = self.head()
        if after is not None and head is not self._followed:
            position = Position.parse(after.position)
            require_same_history(head.table, self._table.uri, position, after.timestamp)
            self._followed = head
        return head

    def require_still(self) -> None:
        """Raises where another table has come to the path since the latest version was looked for. What was read of the
        log in between may be that one's.
        """
        with translating(self._table.uri):
            seen = self._seen
            if seen is None or not seen.is_there(self._log):
                self._seen = self._found(seen)

    def at(self, position: Position) -> DeltaTable:
        """The table at this version, which may be the latest one that was seen."""
        seen = self._seen
        return seen.table if seen is not None and seen.position == position else open_at(self._table.uri, position)

    def _is_still(self, seen: Head) -> bool:
        if is_remote(self._table.uri) and time.monotonic() - self._looked < LOOK_INTERVAL:
            return True
        self._look()
        return seen.is_latest(self._log)

    def _look(self) -> None:
        self._looked, self.looked_at = time.monotonic(), time.time_ns() // 1000

    def _found(self, before: Head | None) -> Head:
        self._look()
        found = open_latest(self._table.uri)
        require_same_table(found, self._table.uri, self._table.table_id)
        require_as_described(found, self._table)
        if before is None or self._log.stamp(before.position.version) != before.stamp:
            self._log.forget()  # Commits that were looked at and not read may be of a history that is no more.
        return Head(self._table.position(found.version()), self._log.stamp(found.version()), found)


def is_remote(uri: str) -> bool:
    return "://" in uri and not uri.startswith("file:")
