"""The table and its log. Keys are pairs of ints in an order of the database's own, which no Python order gives away."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

Key = tuple[int, int]
Row = tuple[int, int, str | None]
"""The two key columns and a value."""


def rank(key: Key) -> tuple[int, int]:
    """The database's order: second column descending by its last digit first. Deliberately not the tuples' own."""
    return (key[0] * 7 % 1009, -key[1])


@dataclass(frozen=True, slots=True)
class Change:
    """One row change; `old` for updates and deletes, `new` for inserts and updates."""

    old: Row | None
    new: Row | None


@dataclass(slots=True)
class Commit:
    """A transaction in the log; `visible` once readers see it, which may be later than its place in the log says."""

    lsn: int
    xid: int
    changes: tuple[Change, ...]
    visible: bool


@dataclass(slots=True)
class Database:
    """Rows by key, as each state shows them; the log in commit order."""

    initial: dict[Key, Row] = field(default_factory=dict)
    log: list[Commit] = field(default_factory=list)
    acknowledged: int = 0
    _next: int = 1

    def commit(self, changes: Iterable[Change], *, visible: bool = True) -> Commit:
        """Appends a transaction. It must not touch a key that an invisible one has touched (row locks)."""
        entry = Commit(self._next, self._next + 1000, tuple(changes), visible)
        self._next += 1
        self.log.append(entry)
        return entry

    @property
    def lsn(self) -> int:
        return self._next

    def hidden(self) -> frozenset[int]:
        return frozenset(entry.lsn for entry in self.log if not entry.visible)

    def locked(self) -> set[Key]:
        """The keys that transactions in the log but not yet visible hold locks on."""
        return {
            (row[0], row[1])
            for entry in self.log
            if not entry.visible
            for change in entry.changes
            for row in (change.old, change.new)
            if row is not None
        }

    def state(self, lsn: int, hidden: frozenset[int]) -> dict[Key, Row]:
        """The table as transactions before `lsn`, without the hidden ones, have made it."""
        rows = dict(self.initial)
        for entry in self.log:
            if entry.lsn < lsn and entry.lsn not in hidden:
                for change in entry.changes:
                    if change.old is not None:
                        del rows[change.old[0], change.old[1]]
                    if change.new is not None:
                        rows[change.new[0], change.new[1]] = change.new
        return rows

    def latest(self) -> dict[Key, Row]:
        """The table as the next writer finds it: locks on hidden transactions' keys are the writer's to respect."""
        return self.state(self._next, frozenset())
