"""The same batch again is told from the batch of another checkpoint."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from backfill.errors import StateError
from backfill.sinks.applied import Applied, is_new

LAST = Applied(3, 10, 700, 44, 5)


def filled() -> bool:
    return False


def empty() -> bool:
    return True


def test_a_later_batch_is_new_and_the_same_one_is_not() -> None:
    assert is_new(LAST, replace(LAST, batch_id=4), "q", filled)
    assert is_new(LAST, Applied(5, 0, None, None), "q", empty)
    assert not is_new(LAST, LAST, "q", filled)
    noted_before = replace(LAST, timestamp=None)
    assert not is_new(noted_before, LAST, "q", filled)
    assert not is_new(LAST, noted_before, "q", filled)


def test_a_target_begins_with_batch_0_or_with_the_rows_of_those_before() -> None:
    assert is_new(None, replace(LAST, batch_id=0), "q", empty)
    assert is_new(None, LAST, "q", filled)
    with pytest.raises(StateError, match="'q' has applied no batch to this table, which is empty, and batch 3 was"):
        is_new(None, LAST, "q", empty)


@pytest.mark.parametrize(
    ("now", "way_out"),
    [
        (replace(LAST, batch_id=2), "older checkpoint"),
        (Applied(0, 0, None, None), "another name, or, to fill the table anew, call start_over with this name$"),
        (replace(LAST, version=701), "stagingDir"),
        (replace(LAST, rows=11), "stagingDir"),
        (replace(LAST, timestamp=6), "stagingDir .* start_over .* begin a new stream, with a fresh checkpointLocation"),
    ],
)
def test_an_earlier_batch_and_another_one_with_the_same_id_are_refused(now: Applied, way_out: str) -> None:
    with pytest.raises(StateError, match=rf"'q' has applied batch 3, and batch \d with other rows .*{way_out}"):
        is_new(LAST, now, "q", filled)


def test_a_batch_is_known_by_its_rows_in_any_order() -> None:
    table = pa.table({"_commit_version": [7, 9, 8], "_sequence": [1, 2, 3]})
    assert Applied.of(4, table) == Applied.of(4, table.take([2, 0, 1])) == Applied(4, 3, 9, 3)
    assert Applied.of(0, table.slice(3)) == Applied(0, 0, None, None)
    times = pa.array([1, 3, 2], pa.timestamp("us", "Asia/Tokyo"))
    assert Applied.of(4, table.append_column("_commit_timestamp", times)) == Applied(4, 3, 9, 3, 3)
    seconds = pa.array([1, 3, 2], pa.timestamp("s", "UTC"))
    assert Applied.of(4, table.append_column("_commit_timestamp", seconds)).timestamp == 3_000_000
