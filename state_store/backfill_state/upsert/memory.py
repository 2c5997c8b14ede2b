"""The upsert state that needs no disk: what the laws mean, one key at a time.

It takes columns apart into Python's values, which no fast state may do. Stored columns hold numbers, texts,
bytes, lists and dictionaries only, so that Python's equality is that of law 5.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa

from backfill_state.closing import Closable
from backfill_state.errors import ConsolidationError
from backfill_state.upsert.columns import Column
from backfill_state.upsert.refusals import require_batch, require_consolidatable, require_consolidated, require_no_batch
from backfill_state.upsert.state import (
    ENTRIES,
    ConsolidateStats,
    Found,
    MergeStats,
    PutStats,
    Totals,
    Updates,
    UpsertLayout,
)
from backfill_state.upsert.stored import ROW, restored, stored_keys, stored_output, stored_schema, stored_updates

_WHERE: Final = "the upsert state in memory"

Cells: TypeAlias = tuple[Any, ...]
"""The stored values of a key or of a row."""


class Entry(NamedTuple):
    order: tuple[int, int] | None
    row: Cells | None
    size: int


@dataclass
class _Content:
    """All that a batch may change."""

    entries: dict[Cells, Entry] = field(default_factory=dict)
    pending: list[tuple[Cells, Cells, int, int]] = field(default_factory=list)
    consolidating: bool = False
    token: str | None = None


class InMemoryUpsertState(Closable):
    """An `UpsertState` that lasts as long as the object; the reference for all others, and for tests."""

    def __init__(self, layout: UpsertLayout, *, tombstones: bool = True) -> None:
        self._layout = layout
        self._tombstones = tombstones
        self._content = _Content()
        self._batch: str | None = None

    @property
    def layout(self) -> UpsertLayout:
        return self._layout

    def token(self) -> str | None:
        return self._content.token

    def totals(self) -> Totals:
        entries = self._content.entries.values()
        values = sum(entry.row is not None for entry in entries)
        return Totals(values, len(entries) - values, sum(entry.size for entry in entries))

    def file_bytes(self) -> int:
        return 0

    def memory_bytes(self) -> int:
        return self.totals().size

    def consolidating(self) -> bool:
        return self._content.consolidating

    @contextmanager
    def batch(self, token: str) -> Iterator[bool]:
        require_no_batch(self._batch, _WHERE)
        before = copy.copy(self._content)
        before.entries, before.pending = dict(before.entries), list(before.pending)
        self._batch = token
        try:
            yield before.token != token
            self._content.token = token
        except BaseException:
            self._content = before
            raise
        finally:
            self._batch = None

    def multi_get(self, keys: pa.Table, *, most_bytes: int | None = None) -> Found:
        require_consolidated(self._content.consolidating, _WHERE)
        asked = _cells(stored_keys(self._layout, keys))
        found = [self._content.entries.get(key) for key in asked]
        if most_bytes is not None:
            reached = accumulate(0 if entry is None else entry.size for entry in found)
            found = found[: max(1, sum(size <= most_bytes for size in reached))]
        heads = [
            (None,) * 4 if entry is None else (*(entry.order or (None, None)), entry.row is not None, entry.size)
            for entry in found
        ]
        rows = [None if entry is None else entry.row for entry in found]
        stored = stored_schema(self._layout.row, ROW)
        columns = [
            pa.array([None if row is None else row[at] for row in rows], item.type) for at, item in enumerate(stored)
        ]
        return Found(
            pa.table([pa.array([head[at] for head in heads], ENTRIES.types[at]) for at in range(4)], schema=ENTRIES),
            restored(pa.table(columns, schema=stored), self._layout.row),
        )

    def multi_put(self, updates: Updates) -> PutStats:
        require_batch(self._batch, _WHERE)
        stored = stored_updates(self._layout, updates)
        if self._replayed:
            return PutStats()
        require_consolidated(self._content.consolidating, _WHERE)
        heads = _cells(stored.heads)
        written: dict[Cells, Entry] = {}
        for key, (*order, present), row, size in zip(
            _cells(stored.keys), heads, _cells(stored.rows), stored.sizes.tolist(), strict=True
        ):
            stands = written.get(key, self._content.entries.get(key))
            if stands is None or stands.order is None or tuple(order) > stands.order:
                written[key] = Entry((order[0], order[1]), row if present else None, size)
        before, old = self.totals(), self._content.entries
        moves = Counter((_has_row(old.get(key)), _has_row(entry)) for key, entry in written.items())
        stay = {key: entry for key, entry in written.items() if self._tombstones or _has_row(entry)}
        self._content.entries = {key: entry for key, entry in old.items() if key not in written} | stay
        after = self.totals()
        return PutStats(
            puts=len(heads),
            stale=len(heads) - len(written),
            size=sum(entry.size for entry in stay.values()),
            inserts=moves[False, True],
            updates=moves[True, True],
            deletes=moves[True, False],
            values_diff=after.values - before.values,
            tombstones_diff=after.tombstones - before.tombstones,
            size_diff=after.size - before.size,
        )

    def multi_merge(self, keys: pa.Table, rows: pa.Table, diffs: Column) -> MergeStats:
        require_batch(self._batch, _WHERE)
        stored = stored_output(self._layout, keys, rows, diffs)
        if self._replayed:
            return MergeStats()
        require_consolidatable(self._content.consolidating, len(self._content.entries), _WHERE)
        signs, sizes = stored.diffs.to_numpy().tolist(), stored.sizes.tolist()
        self._content.pending += zip(_cells(stored.keys), _cells(stored.rows), signs, sizes, strict=True)
        self._content.consolidating = True
        return stored.stats

    def consolidate_chunk(self, keys: pa.Table, rows: pa.Table, diffs: Column, *, completed: bool) -> ConsolidateStats:
        merge = self.multi_merge(keys, rows, diffs)
        if not completed or self._replayed:
            return ConsolidateStats(merge)
        self._complete()
        totals = self.totals()
        return ConsolidateStats(merge, totals.values, totals.size)

    def _complete(self) -> None:
        sums: dict[tuple[Cells, str], int] = {}
        kept: dict[tuple[Cells, str], Entry] = {}
        for key, row, diff, size in self._content.pending:
            line = (key, repr(row))  # A row may hold lists, which have no hash.
            sums[line] = sums.get(line, 0) + diff
            kept[line] = Entry(None, row, size)
        left = {line: total for line, total in sums.items() if total}
        rows_of = Counter(key for key, _ in left)
        wrong = {key for (key, _), total in left.items() if total != 1 or rows_of[key] > 1}
        if wrong:
            raise ConsolidationError(_WHERE, len(wrong), len(self._content.pending))
        entries = {line[0]: kept[line] for line in left}
        self._content = replace(self._content, entries=entries, pending=[], consolidating=False)

    def clear(self) -> None:
        require_batch(self._batch, _WHERE)
        if not self._replayed:
            self._content = _Content(token=self._content.token)

    def reset(self) -> None:
        require_no_batch(self._batch, _WHERE)
        self._content = _Content()

    def close(self) -> None:
        """Nothing is held open; what is stored stays."""

    @property
    def _replayed(self) -> bool:
        return self._batch == self._content.token


def _has_row(entry: Entry | None) -> bool:
    return entry is not None and entry.row is not None


def _cells(table: pa.Table | pa.RecordBatch) -> list[Cells]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))
