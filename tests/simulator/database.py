"""The table, as each state of the database shows it, and its log."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache

from backfill.vnode import Key as KeyText
from backfill.vnode import KeyRange

Key = tuple[int, int]
Row = tuple[int, int, str | None]
"""The two key columns and a value."""

Rank = tuple[int, int]


@cache
def rank(key: Key) -> Rank:
    """Returns a key's place in the database's own order, which is not the order of pairs in Python."""
    return (key[0] * 7 % 1009, -key[1])


@cache
def key_text(key: Key) -> KeyText:
    return (str(key[0]), str(key[1]))


@cache
def rank_of_text(key: KeyText) -> Rank:
    return rank((int(key[0]), int(key[1])))


def inside(key: Key, item: KeyRange) -> bool:
    at = rank(key)
    return (item.after is None or at > rank_of_text(item.after)) and (
        item.upto is None or at <= rank_of_text(item.upto)
    )


@dataclass(frozen=True, slots=True)
class View:
    """What readers see: the commits before `lsn` except the hidden ones. A view's text is a position."""

    lsn: int
    hidden: frozenset[int] = frozenset()

    @staticmethod
    @cache
    def parse(text: str) -> View:
        lsn, _, hidden = text.partition(" ")
        return View(int(lsn), frozenset(int(part) for part in hidden.split(",") if part))

    def __str__(self) -> str:
        return f"{self.lsn} {','.join(map(str, sorted(self.hidden)))}"

    def shows(self, lsn: int) -> bool:
        return lsn < self.lsn and lsn not in self.hidden

    def __or__(self, other: View) -> View:
        """Returns the view of all that at least one of the two shows."""
        hidden = (lsn for lsn in self.hidden | other.hidden if not self.shows(lsn) and not other.shows(lsn))
        return View(max(self.lsn, other.lsn), frozenset(hidden))


@dataclass(frozen=True, slots=True)
class Change:
    """One row change: `old` for updates and deletes, `new` for inserts and updates; neither for a truncation."""

    old: Row | None
    new: Row | None

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(row for row in (self.old, self.new) if row is not None)


TRUNCATION = Change(None, None)


@dataclass(slots=True, eq=False)
class Commit:
    """A transaction in the log; `visible` once readers see it, which may be later than its place in the log says."""

    lsn: int
    changes: tuple[Change, ...]
    visible: bool


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of one state, by key and in key order. Not to be changed."""

    by_key: dict[Key, Row]
    ranks: Sequence[Rank]
    rows: Sequence[Row]

    @classmethod
    def of(cls, by_key: dict[Key, Row]) -> Table:
        rows = sorted(by_key.values(), key=lambda row: rank(row[:2]))
        return cls(by_key, [rank(row[:2]) for row in rows], rows)

    def within(self, item: KeyRange) -> Sequence[Row]:
        begin = 0 if item.after is None else bisect_right(self.ranks, rank_of_text(item.after))
        end = len(self.rows) if item.upto is None else bisect_right(self.ranks, rank_of_text(item.upto))
        return self.rows[begin:end]


@dataclass(slots=True)
class Database:
    """A table, with the rows that were there at first, and the log in commit order."""

    initial: dict[Key, Row] = field(default_factory=dict)
    log: list[Commit] = field(default_factory=list)
    slots: dict[str, int] = field(default_factory=dict)
    """The LSN at which the log begins, for each of its readers by name: what lies before is gone."""

    _latest: dict[Key, Row] = field(init=False)
    _hidden: list[Commit] = field(default_factory=list)
    _tables: dict[View, Table] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._latest = dict(self.initial)

    def commit(self, changes: Iterable[Change], *, visible: bool = True) -> Commit:
        """Appends a transaction. It must not touch a key that an invisible one has touched (row locks)."""
        entry = Commit(self.lsn, tuple(changes), visible)
        self.log.append(entry)
        _apply(self._latest, entry)
        if not visible:
            self._hidden.append(entry)
        return entry

    def reveal(self, entry: Commit) -> None:
        if not entry.visible:
            entry.visible = True
            self._hidden.remove(entry)

    @property
    def lsn(self) -> int:
        """The LSN of the next commit."""
        return len(self.log) + 1

    @property
    def hidden(self) -> tuple[Commit, ...]:
        """The transactions that are in the log and that readers do not see yet."""
        return tuple(self._hidden)

    @property
    def now(self) -> View:
        """The view of a reader who begins now."""
        return View(self.lsn, frozenset(entry.lsn for entry in self._hidden))

    def locked(self) -> set[Key]:
        """The keys that hidden transactions hold locks on."""
        return {row[:2] for entry in self._hidden for change in entry.changes for row in change.rows}

    def table(self, view: View) -> Table:
        found = self._tables.get(view)
        if found is None:
            rows = dict(self.initial)
            for entry in self.log[: view.lsn - 1]:
                if entry.lsn not in view.hidden:
                    _apply(rows, entry)
            found = self._tables[view] = Table.of(rows)
        return found

    def between(self, after: View | None, upto: View) -> list[Commit]:
        """The commits that `upto` shows and `after` does not."""
        return [
            entry
            for entry in self.log[: upto.lsn - 1]
            if entry.lsn not in upto.hidden and not (after is not None and after.shows(entry.lsn))
        ]

    def latest(self) -> dict[Key, Row]:
        """The table as the next writer finds it: locks on hidden transactions' keys are the writer's to respect."""
        return dict(self._latest)


def _apply(rows: dict[Key, Row], entry: Commit) -> None:
    for change in entry.changes:
        if change == TRUNCATION:
            rows.clear()
        if change.old is not None:
            del rows[change.old[:2]]
        if change.new is not None:
            rows[change.new[:2]] = change.new
