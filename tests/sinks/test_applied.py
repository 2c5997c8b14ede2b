"""A sink tells a batch that comes again from the batch of another checkpoint."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from backfill.errors import StateError
from backfill.sinks.applied import AppliedBatch, FilledTable

LAST = AppliedBatch(3, 10, 700, 44, 5)


def new(last: AppliedBatch | None, now: AppliedBatch, *, leaves_rows: bool = True, empty: bool = False) -> bool:
    filling = FilledTable("t", "q", lambda: empty)
    return filling.is_new(last, now, leaves_rows=leaves_rows, way_out=_mended)


def _mended(last: AppliedBatch, now: AppliedBatch) -> str:
    return f"note {last.batch_id + 1} to {now.batch_id - 1}"


def test_a_later_batch_is_new_and_the_same_one_is_not() -> None:
    assert new(LAST, replace(LAST, batch_id=4))
    assert new(LAST, AppliedBatch(4, 0, None, None), empty=True)
    assert not new(LAST, LAST)
    without_time = replace(LAST, timestamp=None)
    assert not new(without_time, LAST)
    assert not new(LAST, without_time)


def test_batches_in_between_are_missed() -> None:
    with pytest.raises(
        StateError,
        match=r"to the table t, .* batch 5.* had no rows, note 4 to 4; else call",
    ):
        new(LAST, AppliedBatch(5, 0, None, None))


def test_a_target_begins_with_batch_0_or_with_the_rows_of_those_before() -> None:
    assert new(None, replace(LAST, batch_id=0), empty=True)
    assert new(None, LAST)
    with pytest.raises(StateError, match=r"'q' has applied no batch to this table, which is empty, .* batch 3"):
        new(None, LAST, empty=True)


def test_the_first_batch_again_is_not_taken_for_applied_where_its_rows_are_gone() -> None:
    first = replace(LAST, batch_id=0)
    with pytest.raises(StateError, match=r"'q' has applied batch 0 with the same rows, .* emptied since.* start_over"):
        new(first, first, empty=True)
    assert not new(first, first, leaves_rows=False, empty=True)
    assert not new(LAST, LAST, empty=True)


@pytest.mark.parametrize(
    ("now", "way_out"),
    [
        (replace(LAST, batch_id=2), "older checkpoint"),
        (AppliedBatch(0, 0, None, None), "another name, or, to fill the table anew, call start_over with this name$"),
        (replace(LAST, version=701), "stagingDir"),
        (replace(LAST, rows=11), "stagingDir"),
        (replace(LAST, timestamp=6), "stagingDir .* start_over .* begin a new stream, with a fresh checkpointLocation"),
    ],
)
def test_an_earlier_batch_and_another_one_with_the_same_id_are_refused(now: AppliedBatch, way_out: str) -> None:
    with pytest.raises(StateError, match=rf"'q' has applied batch 3, .* batch \d with other rows.*{way_out}"):
        new(LAST, now)


def test_a_batch_is_known_by_its_rows_in_any_order() -> None:
    table = pa.table({"_commit_version": [7, 9, 8], "_sequence": [1, 2, 3]})
    assert AppliedBatch.of(4, table) == AppliedBatch.of(4, table.take([2, 0, 1])) == AppliedBatch(4, 3, 9, 3)
    assert AppliedBatch.of(0, table.slice(3)) == AppliedBatch(0, 0, None, None)
    times = pa.array([1, 3, 2], pa.timestamp("us", "Asia/Tokyo"))
    assert AppliedBatch.of(4, table.append_column("_commit_timestamp", times)) == AppliedBatch(4, 3, 9, 3, 3)
    seconds = pa.array([1, 3, 2], pa.timestamp("s", "UTC"))
    assert AppliedBatch.of(4, table.append_column("_commit_timestamp", seconds)).timestamp == 3_000_000
