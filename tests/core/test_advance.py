"""How much a batch may take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from backfill.advance import ENOUGH_CHANGES, UNLIMITED, advance, grown, limits
from backfill.control import Control
from backfill.epoch import Epoch
from backfill.options import OnExistingState, OnTruncate, StartupMode, StreamOptions, parse
from backfill.plan import Extent, Measure
from backfill.progress import Frontier
from backfill.upstream import Pin, TableSize

OPTIONS = StreamOptions(
    startup_mode=StartupMode.INITIAL,
    num_partitions=1,
    vnode_count=10,
    max_rows=1000,
    max_bytes=1 << 20,
    on_truncate=OnTruncate.FAIL,
    on_existing_state=OnExistingState.FAIL,
    mark_unchanged=False,
)
CONTROL = Control()
PIN = Pin(Epoch(1, "", 0, 0), "")
TEN_VNODES = Frontier.at_start(tuple((str(number),) for number in range(1, 10)))


class Table:
    """An upstream of a table of this size, which finds `found` rows in each vnode."""

    def __init__(self, row_count: int, row_bytes: int, found: int) -> None:
        self.size = TableSize(row_count, row_bytes)
        self._found = found

    def measure(self, pin: Pin, requests: Sequence[Measure]) -> list[Extent]:
        assert pin == PIN
        return [
            Extent(request.limit, ("5",)) if request.limit < self._found else Extent(self._found, None)
            for request in requests
        ]


def rows_and_unfinished(
    table: Table, max_rows: int | None, options: StreamOptions, control: Control = CONTROL
) -> tuple[int, int]:
    """Returns how many rows have been read after a batch, and how many vnodes are left."""
    within = limits(table.size, TEN_VNODES.vnode_count, max_rows, options, control)
    reached = advance(table, PIN, TEN_VNODES, within)  # type: ignore[arg-type]
    return reached.row_count, len(list(reached.unfinished))


def test_with_a_filter_a_batch_looks_at_no_more_of_the_table_than_it_may_read() -> None:
    filtered = replace(OPTIONS, snapshot_filter="a > 1")
    assert rows_and_unfinished(Table(100, 1, 0), 30, filtered) == (0, 7)
    assert rows_and_unfinished(Table(100, 1, 0), 5, filtered) == (0, 9)
    assert rows_and_unfinished(Table(100, 1, 0), 5, replace(filtered, num_partitions=4)) == (0, 6)
    assert rows_and_unfinished(Table(0, 0, 0), 30, filtered) == (0, 0)
    assert rows_and_unfinished(Table(100, 1, 0), 30, OPTIONS) == (0, 0)


def test_a_batch_reads_no_more_rows_than_bytes_and_person_allow_but_at_least_one() -> None:
    assert rows_and_unfinished(Table(1000, 100, 100), 50, replace(OPTIONS, max_bytes=2000))[0] == 20
    assert rows_and_unfinished(Table(1000, 100, 100), 10, replace(OPTIONS, max_bytes=2000))[0] == 10
    assert rows_and_unfinished(Table(1000, 100, 100), 50, replace(OPTIONS, max_bytes=99))[0] == 1
    assert rows_and_unfinished(Table(1000, 0, 100), 50, OPTIONS)[0] == 50
    assert rows_and_unfinished(Table(1000, 100, 100), None, replace(OPTIONS, max_bytes=99)) == (1000, 0)
    assert rows_and_unfinished(Table(1000, 1, 100), None, OPTIONS, Control(max_rows=7))[0] == 7
    assert rows_and_unfinished(Table(1000, 1, 100), 50, OPTIONS, Control(paused=True)) == (0, 10)


def test_a_snapshot_alone_is_one_batch_whatever_the_bounds() -> None:
    whole = replace(OPTIONS, startup_mode=StartupMode.SNAPSHOT, max_bytes=99)
    assert rows_and_unfinished(Table(1000, 100, 100), 50, whole, Control(max_rows=7)) == (1000, 0)


def test_each_batch_that_only_works_off_changes_may_take_twice_as_many_up_to_enough() -> None:
    assert [grown(1000, before) for before in (0, 1, 2, 10)] == [1000, 2000, 4000, 1_024_000]
    assert {grown(rows, before) for rows in (1, 1000, 1_999_999) for before in (21, 1 << 40)} == {ENOUGH_CHANGES}


@pytest.mark.parametrize("rows", [ENOUGH_CHANGES, ENOUGH_CHANGES + 1, UNLIMITED])
def test_a_batch_that_may_take_enough_stays_as_it_is(rows: int) -> None:
    assert {grown(rows, before) for before in (0, 1, 1 << 40)} == {rows}


def test_enough_changes_are_what_a_batch_takes_by_default() -> None:
    assert parse({"path": "/t", "keyColumns": "id"}).stream.max_rows == ENOUGH_CHANGES
