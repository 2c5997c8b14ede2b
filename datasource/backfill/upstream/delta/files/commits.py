"""What a commit did to the files, and to the table's definition: its file in the log is JSON, one action in a line."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from deltalake import Schema

from backfill.upstream.delta.files.deletion_vectors import DeletionVector
from backfill.upstream.delta.files.location import FileLocation


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
    """A commit. `timestamp`, in microseconds since 1970, is the commit's own if it is `dated`, else that of its file.

    `definition` is there where the commit has one.
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
        """The files that are there before and after it, but with other rows deleted: each as it was and as it is."""
        removed = {file.location: file for file in self.files if file.kind is Kind.REMOVED}
        added = [file for file in self.files if file.kind is Kind.ADDED and file.location in removed]
        return {file.location: (removed[file.location], file) for file in added}


def actions(content: bytes) -> Iterator[tuple[str, Any]]:
    """The actions in a commit's file, in their order, each with its kind; they are by file, and not by row."""
    for line in content.splitlines():
        line_actions: dict[str, Any] = json.loads(line) if line.strip() else {}
        # A writer may name all kinds in each line, with null for those that it is none of.
        yield from ((kind, action) for kind, action in line_actions.items() if action is not None)


def parsed(version: int, content: bytes, modified: int) -> Commit:
    """The commit by its file, which was written at the time `modified`, in microseconds since 1970."""
    written: list[ChangeFile] = []
    rewritten: list[ChangeFile] = []
    definition: Definition | None = None
    timestamp, dated = modified, False
    for kind, action in actions(content):
        match kind:
            case "cdc":
                written.append(_file(Kind.FEED, action))
            case "add" | "remove" if action.get("dataChange", True):
                rewritten.append(_file(Kind(kind), action))
            case "metaData":
                definition = _definition(action)
            case "commitInfo":
                millis = action.get("inCommitTimestamp") or action.get("timestamp")
                # Only inCommitTimestamp is one of Delta's: writers are free in the rest, which may be a text.
                if millis and isinstance(millis, int | float):
                    timestamp, dated = 1000 * int(millis), True
    # Where a commit has files of the feed, these have all of its changes.
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
