"""Which rows come late, by a column whose greater value is the later row. Pure Arrow and NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from backfill.arrow.arrays import Indices, Mask, mask
from backfill.errors import OptionsError
from backfill.upstream import TableSchema
from backfill.whole_rows.events import Events
from backfill.wording import not_read

NO_ORDER: Final = int(np.iinfo(np.int64).min)
"""The order of what has none; it comes before every other."""


def require_order(table: TableSchema, name: str) -> None:
    """Refuses a column by which rows cannot be ordered as numbers."""
    if name not in table.columns.names:
        raise OptionsError(not_read("orderColumn", name, table.columns.names))
    kind = table.columns.field(name).type
    if not (pt.is_signed_integer(kind) or pt.is_timestamp(kind) or pt.is_date32(kind)):
        raise OptionsError(
            f"orderColumn names {name!r} of type {kind}; expected a column of whole numbers, dates or timestamps"
        )


def order_of(column: Any) -> Indices:
    """A column of whole numbers or of time as numbers of the same order; NO_ORDER where it is null.

    NO_ORDER is the least number of 64 bits, so that number counts as the next one.
    """
    whole = column.cast(pa.int32()) if pt.is_date32(column.type) else column
    numbers: Indices = whole.cast(pa.int64()).fill_null(NO_ORDER + 1).to_numpy()
    return np.where(mask(whole.is_null()), NO_ORDER, np.maximum(numbers, NO_ORDER + 1))


@dataclass(frozen=True, slots=True)
class Timely:
    """Which events are no older than what was there before them, and the order of each key's row after all of them."""

    events: Mask
    order: Indices
    severed: Mask
    """Which events come right after a late one of their key: the row before them is not the one that they changed."""


def timely(events: Events, given: Indices, before: Indices) -> Timely:
    """Tells late events from the others. `given` is the order of each event's row, `before` that of each key so far;
    either may be NO_ORDER.

    An event without an order, as a removal is, is never late; the key keeps its order.
    """
    orders, rank = np.unique(np.concatenate([[NO_ORDER], before, given]), return_inverse=True)
    # A line for each key, then one for each event; sorted by key. The key's number counts more than any rank, so that
    # one running maximum is that of each key.
    number = np.concatenate([np.arange(events.count), events.number])
    by_key = np.argsort(number, kind="stable")
    placed = (number * len(orders) + rank[1:])[by_key]
    reached = np.maximum.accumulate(placed)
    late = np.zeros(len(number), np.bool_)
    late[by_key[1:]] = placed[1:] < reached[:-1]
    last = np.append(np.flatnonzero(np.diff(number[by_key])), len(number) - 1) if len(number) else number
    kept = (given == NO_ORDER) | ~late[events.count :]
    previous = events.previous
    severed = (previous >= 0) & ~kept[previous]
    return Timely(kept, orders[reached[last] % len(orders)], severed)
