"""The pace of a stream, by what its looks have seen and when."""

from __future__ import annotations

from dataclasses import replace

from backfill.command.pace import LOOKS, PaceMeter
from backfill.command.status import Pace, RowsRead, Status
from backfill.control import Control
from backfill.epoch import Epoch
from backfill.offset import Barrier
from backfill.progress import Again, Finished

STARTING = Status("s1", "t", "starting")


def read(rows: int, *, epoch: int, left: int | None = None) -> Status:
    """Returns a look at a stream that reads its snapshot. The moment of the state does not matter."""
    barrier = Barrier("s1", (), Epoch(epoch, "", 0, 7), Finished(8, rows))
    return Status("s1", "t", "snapshot", barrier=barrier, first=RowsRead(rows, left))


def again(rows: int, *, epoch: int, request: str) -> Status:
    """Returns a look at a stream that reads rows again, for this request."""
    barrier = Barrier("s1", (), Epoch(epoch, "", 0, 7), Finished(8, 100), again=Again(request, Finished(8, rows)))
    return Status("s1", "t", "again", barrier=barrier, first=RowsRead(100), again=RowsRead(rows))


def paces(*looks: tuple[float, Status]) -> list[float | None]:
    """Returns the pace after each of the looks, which are taken at these seconds."""
    watching = PaceMeter()
    found = [watching.pace(now, seconds) for seconds, now in looks]
    return [None if pace is None else pace.rows_per_second for pace in found]


def test_it_is_the_rows_between_two_ends_of_batches_over_the_time_between_them() -> None:
    watching = PaceMeter()
    for seconds, now in ((0, read(1000, epoch=1)), (1, read(2000, epoch=2)), (2, read(2000, epoch=2))):
        assert watching.pace(now, seconds) is None  # One end was seen. When the one before was, nobody knows.
    assert watching.pace(read(3000, epoch=3), 5) == Pace(250.0, None)
    assert watching.pace(read(4000, epoch=4, left=3000), 9) == Pace(250.0, 12.0)
    assert watching.pace(read(4000, epoch=4, left=3000), 11) == Pace(250.0, 12.0)


def test_what_was_long_ago_is_forgotten() -> None:
    slow = [(10.0 * number, read(number, epoch=number)) for number in range(1, 5)]
    fast = [(100.0 + number, read(1000 * number, epoch=10 + number)) for number in range(1, LOOKS + 1)]
    assert paces(*slow, *fast)[-1] == 1000.0


def test_a_watch_that_began_before_the_first_batch_has_a_pace_as_soon_as_any() -> None:
    assert paces((0, STARTING), (1, read(10, epoch=1)), (2, read(30, epoch=2))) == [None, None, 20.0]


def test_reading_again_after_changes_has_a_pace_as_soon_as_any() -> None:
    changes = [(float(number), replace(read(100, epoch=number), phase="changes")) for number in range(1, 40)]
    reading = [(39.0 + number, again(10 * number, epoch=39 + number, request="a")) for number in range(1, 4)]
    assert paces(*changes, *reading)[-4:] == [None, None, 10.0, 10.0]


def test_each_request_to_read_again_has_a_pace_of_its_own() -> None:
    one = [(float(number), again(1000 * number, epoch=number, request="a")) for number in range(1, 4)]
    other = [(3.0 + number, again(4000 + number, epoch=3 + number, request="b")) for number in range(1, 4)]
    assert paces(*one, *other) == [None, None, 1000.0, None, 1.0, 1.0]


def test_while_reading_is_held_or_over_there_is_none_and_later_that_time_does_not_count() -> None:
    held = replace(read(2000, epoch=3), control=Control(max_rows=0))
    looks = [(0.0, read(0, epoch=1)), (1.0, read(1000, epoch=2)), (2.0, read(2000, epoch=3)), (3.0, held)]
    after = [(99.0, read(2000, epoch=3)), (100.0, read(3000, epoch=4)), (101.0, read(3500, epoch=5))]
    over = (102.0, replace(read(4000, epoch=6), phase="changes"))
    assert paces(*looks, *after, over) == [None, None, 1000.0, None, None, None, 500.0, None]


def test_another_stream_in_its_place_begins_anew() -> None:
    looks = [(float(number), read(1000 * number, epoch=number)) for number in range(1, 4)]
    other = replace(read(9000, epoch=9), stream="s2")
    assert paces(*looks, (4.0, other)) == [None, None, 1000.0, None]


def test_where_nothing_more_was_read_there_is_none() -> None:
    assert paces((0, STARTING), (1, read(10, epoch=1)), (2, read(10, epoch=2))) == [None, None, None]
