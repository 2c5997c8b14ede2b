"""The transaction log of a table, commit by commit: `deltalake` gives the state at a version, not what a commit did."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from deltalake import DeltaTable

from backfill.upstream.delta.files.commits import ChangeFile, Commit, parsed
from backfill.upstream.delta.files.location import FileLocation, Files


@dataclass(frozen=True, slots=True)
class FileStamp:
    """What tells one writing of a commit's file from another one of the same name."""

    modified: int | None
    size: int | None


class Log:
    """The log of one table."""

    def __init__(self, table: DeltaTable) -> None:
        self.files = Files(table.table_uri)
        self._commits: dict[int, Commit] = {}

    def stamp(self, version: int) -> FileStamp | None:
        """The stamp of the commit's file; None where there is no such commit, or the log was cleaned up."""
        (found,) = self.files.own.get_file_info([commit_file(version)])
        return FileStamp(found.mtime_ns, found.size) if found.type == pa_fs.FileType.File else None

    def commit(self, version: int) -> Commit | None:
        """What the commit did; None as for `stamp`."""
        if version not in self._commits:
            stamp = self.stamp(version)
            if stamp is None:
                return None
            try:
                with self.files.own.open_input_file(commit_file(version)) as file:
                    content = file.read()
            except FileNotFoundError:
                return None  # The log is cleaned up just now.
            self._commits[version] = parsed(version, content, (stamp.modified or 0) // 1000)
        return self._commits[version]

    def oldest(self, upto: int) -> int:
        """The oldest version after which the log has every commit up to `upto`; -1 where it has them all."""
        found = self.files.own.get_file_info(pa_fs.FileSelector("_delta_log"))
        present = {int(name) for info in found if (name := info.base_name.removesuffix(".json")).isdigit()}
        version = upto
        while version in present:
            version -= 1
        return version

    def forget(self) -> None:
        """Forgets all commits: the next look at one reads it anew."""
        self._commits.clear()

    def forget_before(self, version: int) -> None:
        for old in [number for number in self._commits if number < version]:
            del self._commits[old]

    def size(self, versions: Iterable[int]) -> int:
        """How many bytes the files with the changes of these commits have, as far as the log has the commits."""
        return sum(commit.size for commit in map(self.commit, versions) if commit is not None)

    def row_count(self, commit: Commit, most: int) -> int:
        """How many rows the commit's changes have, or at least `most`; rows that were only rewritten count as well."""
        kept = commit.kept_files()
        found = sum(abs(was.deleted_count - now.deleted_count) for was, now in kept.values())
        for file in commit.files:
            if found >= most:
                break
            if file.location not in kept:
                found += self._rows(file) if file.row_count is None else file.row_count
        return found

    def _rows(self, file: ChangeFile) -> int:
        try:
            with self.files.open(file.location) as opened:
                return int(pq.read_metadata(opened).num_rows)
        except (OSError, pa.ArrowException):
            return 0  # Whoever reads the changes will say that it is gone.

    def missing(self, commit: Commit) -> Iterator[FileLocation]:
        """The files that the commit's changes are read from and that are gone."""
        for file in commit.files:
            vector = None if file.vector is None else file.vector.location
            for location in (file.location, vector):
                if location is not None and not self.files.has(location):
                    yield location


def commit_file(version: int) -> str:
    """Where that commit is in the table's folder."""
    return f"_delta_log/{version:020}.json"
