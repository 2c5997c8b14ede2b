"""What became of a table from version to version, as far as its log still knows; and what to do where it does not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from deltalake import Schema

from backfill.errors import DataLossError
from backfill.upstream.delta.changes import feed
from backfill.upstream.delta.changes.rows import change_rows
from backfill.upstream.delta.failures import translating
from backfill.upstream.delta.files.commits import Commit
from backfill.upstream.delta.files.log import Log
from backfill.upstream.delta.tables.opening import open_if_kept, reading
from backfill.upstream.delta.tables.properties import has_feed, require_unmapped_at
from backfill.upstream.delta.tables.table import Table
from backfill.upstream.delta.tables.ways_out import GO_ON, START_OVER, WITHOUT_CHANGES

logger = logging.getLogger("backfill")


@dataclass(frozen=True, slots=True)
class History:
    """The log of the table as the stream reads it. `strict`: lost changes end the stream, else they are logged."""

    table: Table
    log: Log
    strict: bool
    way_out: str = WITHOUT_CHANGES
    """What to do where changes are lost."""

    way_on: str = GO_ON
    """What to do where a version has other columns."""

    def require_passable(self, version: int) -> Commit | None:
        """The commit; raises where the stream cannot go on past it. None where it is lost and failOnDataLoss=false."""
        uri = self.table.uri
        found = self._logged(version)
        if found is None:
            self._lost(self._cleaned_up(version))
        elif found.definition is not None:
            require_unmapped_at(version, found.definition.properties, uri)
            columns = found.definition.columns
            self.table.require_unchanged(columns, version, self._to_come(columns, version), way_on=self.way_on)
            if not has_feed(found.definition.properties):
                self._lost(
                    f"version {version} of the Delta table {uri} switched the change data feed off, so changes after "
                    "it were not kept"
                )
        return found

    def require_kept(self, version: int) -> None:
        """Raises DataLossError where the log has lost this version, also with failOnDataLoss=false."""
        if self._logged(version) is None:
            raise DataLossError(f"{self._cleaned_up(version)}, and there is no record that the stream has read it")

    def _logged(self, version: int) -> Commit | None:
        with translating(self.table.uri):
            return self.log.commit(version)

    def _cleaned_up(self, version: int) -> str:
        return f"the log of the Delta table {self.table.uri} no longer has version {version}, because it was cleaned up"

    def _to_come(self, found: Schema, version: int) -> set[str]:
        """The stream's columns that this version lacks because they were added after it: in its rows they are null.

        One that the version before it had was dropped here, even if a later version has it again.
        """
        lacking = set(self.table.columns.names) - {field.name for field in found.fields}
        if not lacking or not version:
            return lacking
        before = open_if_kept(self.table.uri, self.table.position(version - 1))
        if before is None:
            return set()  # That it was not dropped can no longer be seen.
        return lacking - {field.name for field in before.schema().fields}

    def cut(self, after: int, upto: int, max_changes: int) -> int:
        """The version up to which there are about `max_changes` changes; every commit up to it is looked at."""
        taken, is_lost = 0, False
        for version in range(after + 1, upto + 1):
            commit = self.require_passable(version)
            if is_lost and commit is not None and commit.definition is None:
                self._require_unmapped_since_lost(version, upto)
            is_lost = commit is None
            if commit is not None and version < upto:
                with translating(self.table.uri):
                    taken += self.log.row_count(commit, max_changes - taken)
            if taken >= max_changes:
                return version
        return max(after, upto)

    def _require_unmapped_since_lost(self, version: int, upto: int) -> None:
        """Refuses a commit if a lost one before it may have given columns other names in the files: what has another
        name would be null, or taken for another column.

        Up to the next definition all commits have the same one. So where the log was cleaned up to between two
        checkpoints, and this version cannot be opened, the last of these commits tells.
        """
        uri, last = self.table.uri, version
        opened = open_if_kept(uri, self.table.position(version))
        if opened is None:
            while last < upto and (following := self._logged(last + 1)) is not None and following.definition is None:
                last += 1
            opened = open_if_kept(uri, self.table.position(last))
        if opened is None:
            raise DataLossError(
                f"the log of the Delta table {uri} no longer says whether its columns had other names in the files at "
                f"version {version}, because it was cleaned up before that. {START_OVER}"
            )
        require_unmapped_at(version, opened.metadata().configuration, uri)

    def changes(self, after: int, upto: int, require_still: Callable[[], object]) -> Iterator[pa.RecordBatch]:
        """What the commits after version `after` and up to `upto` did, in the layout of `backfill.changes`.

        `require_still` raises where another table is at the path now: a commit does not say which one it is of.
        """
        table = self.table
        # Not within `reading`: where something of the log itself is gone, it was not VACUUM that removed it.
        found = [commit for commit in map(self.require_passable, range(after + 1, upto + 1)) if commit is not None]
        require_still()
        commits = [commit for commit in found if self._is_whole(commit)]
        with reading(table.uri, f"{after + 1} to {upto}", self.way_out):
            yield from feed.changes(change_rows(self.log.files, table, commits), table.columns, table.key)

    def _is_whole(self, commit: Commit) -> bool:
        """Whether its files are still there; not looked at where a lost one ends the stream: reading will find it."""
        if self.strict:
            return True
        with translating(self.table.uri):
            gone = next(self.log.missing(commit), None)
        if gone is not None:
            self._lost(f"the file {gone} with changes of version {commit.version} is gone")
            return False
        return True

    def timestamp(self, version: int) -> int | None:
        """When this version was committed, in microseconds since 1970, if the log knows."""
        commit = self._logged(version)
        return None if commit is None else commit.timestamp or None

    def _lost(self, what: str) -> None:
        if self.strict:
            raise DataLossError(f"{what}, and it was not read before. {self.way_out}")
        logger.error("going on although changes were lost, because of failOnDataLoss=false: %s", what)
