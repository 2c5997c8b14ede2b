"""A sink that refuses what no consumer could apply."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from backfill.rows import RESERVED

Row = dict[str, Any]
Rows = dict[tuple[Any, ...], Row]


@dataclass
class Fold:
    """Applies rows in the order of `_sequence`, and refuses what no consumer could apply (I2, I3).

    With `full` it also refuses an update without the row before it, and a delete without the whole row. Rows that are
    read again come as snapshot rows of keys that are there, and supersede what was there. With `supersedes` any
    snapshot row may do so, for tests that do not know which batch a row is of.
    """

    key: tuple[str, ...]
    full: bool = False
    supersedes: bool = False
    rows: Rows = field(default_factory=dict)
    sequences: dict[tuple[Any, ...], int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    commits: set[int] = field(default_factory=set)

    def apply(self, batch: list[Row], *, again: bool = False) -> None:
        commits = {row["_commit_version"] for row in batch if not row["_is_snapshot"]}
        assert not commits & self.commits, f"commits in more than one batch: {commits & self.commits}"
        self.commits |= commits
        before: Row | None = None
        for row in sorted(batch, key=lambda row: row["_sequence"]):
            if self.full and row["_change_type"] == "update_postimage":
                alone = before is None or before["_change_type"] != "update_preimage" or not self._same_key(before, row)
                assert not alone, f"an update without the row before it: {row}"
            self._apply(row, again=again)
            before = row

    def _same_key(self, one: Row, other: Row) -> bool:
        return all(one[name] == other[name] for name in self.key)

    def _there(self, key: tuple[Any, ...], columns: Iterable[str]) -> Row | None:
        """The row of this key, with null in columns that the stream did not carry yet when the row came."""
        there = self.rows.get(key)
        return None if there is None else {**dict.fromkeys(columns), **there}

    def _apply(self, row: Row, *, again: bool) -> None:
        key = tuple(row[name] for name in self.key)
        kind = row["_change_type"]
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if kind == "truncate":
            self.rows.clear()
            return
        assert row["_sequence"] > self.sequences.get(key, -1), f"_sequence does not grow: {row}"
        self.sequences[key] = row["_sequence"]
        values = {name: value for name, value in row.items() if name not in RESERVED}
        match kind:
            case "insert":
                there = key in self.rows
                right = there == (again and row["_is_snapshot"]) or (self.supersedes and row["_is_snapshot"])
                assert right, f"insert of {'a present' if there else 'an absent'} key: {row}"
                self.rows[key] = values
            case "update_preimage":
                assert self._there(key, values) == values, f"not the row before: {row}"
            case "update_postimage":
                assert key in self.rows, f"update of an absent key: {row}"
                self.rows[key] = values
            case "delete":
                assert key in self.rows, f"delete of an absent key: {row}"
                assert not self.full or self._there(key, values) == values, f"not the row that is deleted: {row}"
                del self.rows[key]
            case _:
                raise AssertionError(f"unknown change type {kind}")
