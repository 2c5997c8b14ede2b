"""Which catalog rows came between two states, by the 32-bit ids of the transactions that wrote them."""

from __future__ import annotations

import pytest

from backfill.upstream.postgres.position import Snapshot
from backfill.upstream.postgres.tables.partition_warnings import Since


@pytest.mark.parametrize("epoch", [0, 1 << 32, (1 << 34) - 150])
@pytest.mark.parametrize(
    ("xid", "between"),
    [
        (99, False),  # older than all that were running
        (100, True),  # running then
        (101, False),  # seen then
        (110, True),  # the next one
        (119, True),
        (120, False),  # not seen now: it is of another round of the ids
        (120 + (1 << 31), False),
    ],
)
def test_what_came_between_is_what_was_not_seen_before(epoch: int, xid: int, *, between: bool) -> None:
    before = Snapshot(epoch + 100, epoch + 110, (epoch + 100,))
    since = Since(before, Snapshot(epoch + 120, epoch + 120, ()))
    assert since.may_have_come((epoch + xid) % (1 << 32)) is between
