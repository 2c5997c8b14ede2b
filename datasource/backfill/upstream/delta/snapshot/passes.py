"""Whether key ranges are read one after the other, or all in one pass over the files.

Read one after the other, they are sorted in memory, and in a table that is clustered by its key each looks at files of
its own. In any other table each may look at nearly all files, as all of them do together in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc
from deltalake import DeltaTable

from backfill.arrow.arrays import Mask, mask
from backfill.upstream.delta.files.statistics import ends
from backfill.upstream.delta.keys.columns import KeyColumn, KeyColumns
from backfill.vnode import Coverage, KeyRange, merged

_LOOKS: Final = 2
"""How often ranges that are read one by one may look at a file, on average. Sorting on disk costs about as much."""


def passes(table: DeltaTable, key: KeyColumns, ranges: Sequence[KeyRange]) -> list[Coverage]:
    """The ranges of each pass. Several ranges are read in one pass only where they come in the order of their keys.

    It goes by the files' statistics of the key's first column; a file without them may hold any key.
    """
    one_by_one: list[Coverage] = [(item,) for item in ranges]
    if len(ranges) < 2 or not _ascend(key, ranges):
        return one_by_one
    column = key.columns[0]
    least, greatest = ends(table, column)
    looks = np.array([_may_hold(column, least, greatest, item) for item in ranges])
    return [merged(ranges)] if looks.sum() > _LOOKS * looks.any(axis=0).sum() else one_by_one


def _ascend(key: KeyColumns, ranges: Sequence[KeyRange]) -> bool:
    return all(
        one.upto is not None and other.after is not None and key.values(one.upto) <= key.values(other.after)
        for one, other in pairwise(ranges)
    )


def _may_hold(column: KeyColumn, least: Any, greatest: Any, item: KeyRange) -> Mask:
    """Which files may hold keys of the range."""
    found = np.ones(len(least), np.bool_)
    for end, values, compare in ((item.after, greatest, pc.greater_equal), (item.upto, least, pc.less_equal)):
        if end is not None:
            [bound] = column.typed([column.value(end[0])])
            found &= mask(compare(values, bound).fill_null(True))
    return found
