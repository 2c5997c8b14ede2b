"""The same batch again is told from the batch of another checkpoint."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from backfill.errors import StateError
from backfill.sinks.applied import Applied, is_new

LAST = Applied(3, 10, 700, 44, 5)


def test_a_later_batch_is_new_and_the_same_one_is_not() -> None:
    assert is_new(None, LAST, "q")
    assert is_new(LAST, replace(LAST, batch_id=4), "q")
    assert is_new(LAST, Applied(5, 0, None, None), "q")
    assert not is_new(LAST, LAST, "q")
    noted_before = replace(LAST, timestamp=None)
    assert not is_new(noted_before, LAST, "q")
    assert not is_new(LAST, noted_before, "q")


@pytest.mark.parametrize(
    "now",
    [
        replace(LAST, batch_id=2),
        Applied(0, 0, None, None),
        replace(LAST, version=701),
        replace(LAST, rows=11),
        replace(LAST, timestamp=6),
    ],
)
def test_an_earlier_batch_and_another_one_with_the_same_id_are_of_another_checkpoint(now: Applied) -> None:
    with pytest.raises(StateError, match=r"'q' has applied batch 3, and batch \d with other rows .* start_over"):
        is_new(LAST, now, "q")


def test_a_batch_is_known_by_its_rows_in_any_order() -> None:
    table = pa.table({"_commit_version": [7, 9, 8], "_sequence": [1, 2, 3]})
    assert Applied.of(4, table) == Applied.of(4, table.take([2, 0, 1])) == Applied(4, 3, 9, 3)
    assert Applied.of(0, table.slice(3)) == Applied(0, 0, None, None)
    times = pa.array([1, 3, 2], pa.timestamp("us", "Asia/Tokyo"))
    assert Applied.of(4, table.append_column("_commit_timestamp", times)) == Applied(4, 3, 9, 3, 3)
    seconds = pa.array([1, 3, 2], pa.timestamp("s", "UTC"))
    assert Applied.of(4, table.append_column("_commit_timestamp", seconds)).timestamp == 3_000_000
