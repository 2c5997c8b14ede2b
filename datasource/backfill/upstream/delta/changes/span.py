"""The changes between two versions, read on an executor."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable

from backfill.errors import DataLossError, OptionsError, TableError
from backfill.upstream import EARLIEST, LATEST
from backfill.upstream.delta.changes.history import History
from backfill.upstream.delta.failures import translating
from backfill.upstream.delta.files.log import Log
from backfill.upstream.delta.tables.opening import open_at, open_if_kept, open_latest, require_same_table
from backfill.upstream.delta.tables.properties import has_feed, is_followable, require_followable
from backfill.upstream.delta.tables.table import Table

BEFORE_ALL: Final = -1
"""The position before the first version, whose rows are the first changes."""

_WAY_OUT: Final = "Read what is left with startingPosition=earliest, and the table for the rest"
_ANEW: Final = "load() its changes again, between versions of the present table"
_WAY_ON: Final = "Read the changes since the table got its present columns, with a later startingPosition"


@dataclass(frozen=True, slots=True)
class DeltaChangeReader:
    """See `backfill.upstream.ChangeReader`. The positions are versions."""

    table: Table
    after: str
    upto: str

    def read(self) -> Iterator[pa.RecordBatch]:
        table = self.table
        history = History(table, Log(self._latest()), strict=True, way_out=_WAY_OUT, way_on=_WAY_ON)
        yield from history.changes(int(self.after), int(self.upto), self._latest)

    def _latest(self) -> DeltaTable:
        latest = open_latest(self.table.uri)
        require_same_table(latest, self.table.uri, self.table.table_id, way_out=_ANEW)
        return latest


def span(table: Table, latest: DeltaTable, starting: str, ending: str) -> DeltaChangeReader:
    """A reader of the changes between the positions; see `backfill.upstream.Upstream.span`."""
    require_followable(latest, table.uri)
    last = latest.version()
    upto = _version("endingPosition", ending, last, least=0)
    if upto is None:
        upto = _earliest(table, latest, last)
    after = _version("startingPosition", starting, last, least=BEFORE_ALL)
    if after is None:
        after = _earliest(table, latest, upto)
    elif BEFORE_ALL < after < last:
        _require_followable_after(table, after)
    if after > upto:
        raise OptionsError(f"startingPosition is version {after}, which lies after endingPosition, version {upto}")
    return DeltaChangeReader(table, str(after), str(upto))


def _version(option: str, text: str, last: int, *, least: int) -> int | None:
    """The version that the text names; None for the earliest one."""
    if (word := text.strip().lower()) in (EARLIEST, LATEST):
        return None if word == EARLIEST else last
    if not re.fullmatch(r"-1|\d{1,18}", text.strip()) or int(text) < least:
        raise OptionsError(f"{option} is {text!r}; expected a version such as 12, {EARLIEST} or {LATEST}")
    if int(text) > last:
        raise OptionsError(
            f"{option} is version {int(text)}, and the table's latest version is {last}; expected that or an earlier "
            f"one, or {LATEST}"
        )
    return int(text)


def _require_followable_after(table: Table, after: int) -> None:
    properties = open_at(table.uri, table.position(after), way_out=_WAY_OUT).metadata().configuration
    if not has_feed(properties):
        raise DataLossError(
            f"the change data feed of the Delta table {table.uri} was off at version {after}, so changes after it "
            f"were not kept. {_WAY_OUT}"
        )
    if not is_followable(properties):  # Commits after it need not say so, and what they call otherwise would be null.
        raise TableError(
            f"the Delta table {table.uri} had column mapping at version {after}, so its columns have other names in "
            f"the files, and changes after it cannot be read. {_WAY_OUT}"
        )


def _earliest(table: Table, latest: DeltaTable, upto: int) -> int:
    """The oldest version after which the log has every commit up to `upto`, with the feed on, without column mapping,
    and with its files.

    A look at each file is little beside reading it, which follows. VACUUM takes files long before the log forgets them.
    """
    log = Log(latest)
    with translating(table.uri):
        begin, can_follow = _oldest_known(table, log.oldest(upto), upto)
        found = begin if can_follow else None
        for version in range(begin + 1, upto + 1):
            commit = log.commit(version)
            if commit is None or commit.definition is None:
                continue
            if not is_followable(commit.definition.properties):
                found = None
            elif found is None:
                found = version
        if found is None:
            return upto
        return next((version for version in range(upto, found, -1) if _lacks_files(log, version)), found)


def _lacks_files(log: Log, version: int) -> bool:
    commit = log.commit(version)
    return commit is None or next(log.missing(commit), None) is not None


def _oldest_known(table: Table, oldest: int, upto: int) -> tuple[int, bool]:
    """The first version from `oldest` on that can be opened, and whether the changes after it can be followed."""
    if oldest == BEFORE_ALL:
        return BEFORE_ALL, True
    for version in range(oldest, upto):
        # A log that was cleaned up begins with a checkpoint, and has no state before it.
        opened = open_if_kept(table.uri, table.position(version))
        if opened is not None:
            return version, is_followable(opened.metadata().configuration)
    return upto, True
