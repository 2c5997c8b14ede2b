"""The row changes of one relation: Insert, Update, Delete and Truncate messages, and where their tuples lie.

After the relation's OID (Int32) a byte tells which tuple follows. Insert: `N` new. Update: `N`, or before it `K`
(the old key, all other columns null) or `O` (the old row). Delete: `K` or `O`. A Truncate message holds the
number of relations (Int32), options (Int8) and the relations' OIDs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from backfill.arrow.arrays import Mask
from backfill.upstream.postgres.decoder.messages import (
    DELETE,
    INSERT,
    TRUNCATE,
    UPDATE,
    Messages,
    Positions,
    require,
)
from backfill.upstream.postgres.decoder.tuples import Tuples, walk

NEW_TUPLE: Final = ord("N")
OLD_KEY_TUPLE: Final = ord("K")
OLD_ROW_TUPLE: Final = ord("O")
_NO_TUPLE: Final = 0

_CARRIES_ROW: Final = np.isin(np.arange(256), [INSERT, UPDATE, DELETE])


@dataclass(frozen=True)
class RowChanges:
    """Messages in order: their numbers, what they are, where they lie, and which tuple stands first."""

    message: Positions
    kind: NDArray[np.uint8]
    start: Positions
    end: Positions
    first_tuple: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.message)

    @property
    def has_new(self) -> Mask:
        return np.isin(self.kind, [INSERT, UPDATE])

    @property
    def has_old(self) -> Mask:
        return np.isin(self.first_tuple, [OLD_KEY_TUPLE, OLD_ROW_TUPLE])

    def __getitem__(self, part: Positions) -> RowChanges:
        return RowChanges(self.message[part], self.kind[part], self.start[part], self.end[part], self.first_tuple[part])


def row_changes(messages: Messages, relation_id: int, inside: Mask, kept: Mask) -> RowChanges:
    """The relation's changes among the messages `kept`; `inside` tells which messages are inside a transaction."""
    rows = np.flatnonzero(_CARRIES_ROW[messages.kind])
    require(inside[rows], "a row change stands outside a transaction")
    rows = rows[messages.uint32(messages.start[rows] + 1) == relation_id]
    truncates = _truncates(messages, relation_id)
    if len(truncates):
        require(inside[truncates], "a truncation stands outside a transaction")
        rows = np.sort(np.concatenate([rows, truncates]))
    rows = rows[kept[rows]]

    kind, start = messages.kind[rows], messages.start[rows]
    first_tuple = np.where(kind == TRUNCATE, _NO_TUPLE, messages.uint8(start + 5)).astype(np.uint8)
    changes = RowChanges(rows, kind, start, messages.end[rows], first_tuple)
    fits = (first_tuple == NEW_TUPLE) & (kind != DELETE) | changes.has_old & (kind != INSERT) | (kind == TRUNCATE)
    require(fits, "a row change holds another kind of tuple than its type allows")
    return changes


def _truncates(messages: Messages, relation_id: int) -> Positions:
    truncates = np.flatnonzero(messages.kind == TRUNCATE)
    start = messages.start[truncates]
    count = messages.uint32(start + 1)
    require(messages.end[truncates] - start == 6 + 4 * count, "a Truncate message has another length than it says")
    first = np.cumsum(count) - count
    entry = np.arange(int(count.sum())) - np.repeat(first, count)
    names_ours = messages.uint32(np.repeat(start + 6, count) + 4 * entry) == relation_id
    return np.unique(np.repeat(truncates, count)[names_ours])


def walk_rows(
    messages: Messages,
    changes: RowChanges,
    places: Positions,
    targets: tuple[int | None, ...],
    new: Tuples,
    old: Tuples,
) -> None:
    """Finds the tuples of the changes at `places` (ascending, no truncations), which all have the same columns."""
    new_at = changes.start + 6
    have_old = places[changes.has_old[places]]
    if len(have_old):
        some = changes[have_old]
        after = walk(messages, some.start + 6, have_old, some.end, targets, old)
        update = some.kind == UPDATE
        ends = np.where(update, (after < some.end) & (messages.uint8(after) == NEW_TUPLE), after == some.end)
        require(ends, "an old row does not end where it should")
        new_at[have_old] = after + 1
    have_new = places[changes.has_new[places]]
    if len(have_new):
        after = walk(messages, new_at[have_new], have_new, changes.end[have_new], targets, new)
        require(after == changes.end[have_new], "a row does not end where it should")
