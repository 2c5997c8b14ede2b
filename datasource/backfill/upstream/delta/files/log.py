"""Single commits of the transaction log: what each did to the files, and to the table's definition.

`deltalake` gives the state at a version, not what a commit did. The log's files are JSON, one action in a line.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema

from backfill.upstream.delta.files.deletion_vectors import DeletionVector
from backfill.upstream.delta.files.location import FileLocation, Files


class Kind(enum.Enum):
    """What the rows of a file say of a commit's changes."""

    FEED = "cdc"
    """Each row says what it is."""

    ADDED = "add"
    """All are there now."""

    REMOVED = "remove"
    """All are gone."""


@dataclass(frozen=True, slots=True)
class ChangeFile:
    """A file that a commit's changes are read from.

    `partition` has the values of the partition columns as text. `vector`: which of its rows are deleted. `partition`
    and `row_count` are None where the log does not say them.
    """

    kind: Kind
    location: FileLocation
    partition: Mapping[str, str | None] | None
    vector: DeletionVector | None
    row_count: int | None
    size: int

    @property
    def deleted_count(self) -> int:
        return 0 if self.vector is None else self.vector.cardinality


@dataclass(frozen=True, slots=True)
class Definition:
    """What a commit made of the table: its columns, those that it is partitioned by, and its properties."""

    columns: Schema
    partitioned_by: frozenset[str]
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Commit:
    """`timestamp` in microseconds since 1970, which the commit says itself if it is `dated`, and else its file.

    `definition` where the commit says one.
    """

    version: int
    timestamp: int
    dated: bool
    files: tuple[ChangeFile, ...]
    definition: Definition | None

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def kept_files(self) -> dict[FileLocation, tuple[ChangeFile, ChangeFile]]:
        """The files that are there before and after it, of which other rows are deleted then: as they were and are."""
        removed = {file.location: file for file in self.files if file.kind is Kind.REMOVED}
        added = [file for file in self.files if file.kind is Kind.ADDED and file.location in removed]
        return {file.location: (removed[file.location], file) for file in added}


@dataclass(frozen=True, slots=True)
class Stamp:
    """What tells one writing of a commit's file from another one of the same name."""

    modified: int | None
    size: int | None


class Log:
    """The log of one table."""

    def __init__(self, table: DeltaTable) -> None:
        self.files = Files(table.table_uri)
        self._commits: dict[int, Commit] = {}

    def stamp(self, version: int) -> Stamp | None:
        """None where there is no such commit, or the log was cleaned up."""
        (found,) = self.files.own.get_file_info([commit_file(version)])
        return Stamp(found.mtime_ns, found.size) if found.type == pa_fs.FileType.File else None

    def commit(self, version: int) -> Commit | None:
        """None as in `stamp`."""
        if version not in self._commits:
            stamp = self.stamp(version)
            if stamp is None:
                return None
            with self.files.own.open_input_file(commit_file(version)) as file:
                self._commits[version] = _parsed(version, file.read(), stamp)
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
        """The next look at a commit reads it anew."""
        self._commits.clear()

    def forget_before(self, version: int) -> None:
        for old in [number for number in self._commits if number < version]:
            del self._commits[old]

    def size(self, versions: Iterable[int]) -> int:
        """How large the files with the changes of these commits are, as far as the log has them."""
        return sum(commit.size for commit in map(self.commit, versions) if commit is not None)

    def row_count(self, commit: Commit, most: int) -> int:
        """How many rows its changes are, or at least `most`; what is rewritten counts as well."""
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
        """Which of the files that its changes are read from are gone."""
        for file in commit.files:
            vector = None if file.vector is None else file.vector.location
            for location in (file.location, vector):
                if location is not None and not self.files.has(location):
                    yield location


def commit_file(version: int) -> str:
    """Where that commit is in the table's folder."""
    return f"_delta_log/{version:020}.json"


def actions(content: bytes) -> Iterator[tuple[str, Any]]:
    """What a commit's file says, in its order, each with its kind; one for each file of it, not for each row."""
    for line in content.splitlines():
        yield from (json.loads(line) if line.strip() else {}).items()


def _parsed(version: int, content: bytes, stamp: Stamp) -> Commit:
    written: list[ChangeFile] = []
    rewritten: list[ChangeFile] = []
    definition: Definition | None = None
    timestamp, dated = (stamp.modified or 0) // 1000, False
    for kind, action in actions(content):
        match kind:
            case "cdc":
                written.append(_file(Kind.FEED, action))
            case "add" | "remove" if action.get("dataChange", True):
                rewritten.append(_file(Kind(kind), action))
            case "metaData":
                definition = _definition(action)
            case "commitInfo":
                said = action.get("inCommitTimestamp") or action.get("timestamp")
                timestamp, dated = (1000 * int(said), True) if said else (timestamp, dated)
    # Where a commit says its changes, they are all of them.
    return Commit(version, timestamp, dated, tuple(written or rewritten), definition)


def _file(kind: Kind, action: Mapping[str, Any]) -> ChangeFile:
    statistics = json.loads(action.get("stats") or "{}")
    vector = action.get("deletionVector")
    return ChangeFile(
        kind=kind,
        location=FileLocation.of(action["path"]),
        partition=action.get("partitionValues"),
        vector=DeletionVector.of(vector) if vector else None,
        row_count=statistics.get("numRecords"),
        size=int(action.get("size") or 0),
    )


def _definition(action: Mapping[str, Any]) -> Definition:
    return Definition(
        columns=Schema.from_json(action["schemaString"]),
        partitioned_by=frozenset(action.get("partitionColumns") or ()),
        properties=dict(action.get("configuration") or {}),
    )
