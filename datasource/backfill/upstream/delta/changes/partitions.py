"""By which columns a table was partitioned from version to version."""

from __future__ import annotations

from collections.abc import Sequence

from backfill.upstream.delta.files.commits import Commit
from backfill.upstream.delta.tables.opening import open_if_kept
from backfill.upstream.delta.tables.table import Table


class Partitioning:
    """The columns by which a table was partitioned at each of its versions; `commits` are those known already."""

    def __init__(self, table: Table, commits: Sequence[Commit]) -> None:
        self._table = table
        self._commits = {commit.version: commit for commit in commits}
        self._opened: dict[int, frozenset[str] | None] = {}

    def at(self, version: int) -> frozenset[str] | None:
        """The columns at this version; None where it cannot be opened any more."""
        while (commit := self._commits.get(version)) is not None:
            if commit.definition is not None:
                return commit.definition.partitioned_by
            version -= 1
        if version not in self._opened:
            opened = open_if_kept(self._table.uri, self._table.position(version))
            self._opened[version] = None if opened is None else frozenset(opened.metadata().partition_columns)
        return self._opened[version]
