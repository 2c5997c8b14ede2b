"""The picture of a stream's status, in windows of all widths."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from backfill.amounts import duration, iso, moment, pace, size
from backfill.command.display import MOST_GRID_LINES, Window, drawn
from backfill.command.status import Pace, RowsRead, Status, VnodeState, as_json
from backfill.control import Control
from backfill.counts import Counts
from backfill.epoch import Epoch
from backfill.offset import Barrier
from backfill.progress import Finished
from backfill.upstream.lag import Lag

SECOND = 1_000_000
VNODES = (VnodeState.COMPLETED,) * 3 + (VnodeState.IN_PROGRESS,) + (VnodeState.NOT_STARTED,) * 4


def at(second: int, rows: int, *, left: int | None = None) -> Status:
    """Returns a status as of so many seconds after 1970; only the epoch of its barrier matters."""
    barrier = Barrier("s1", (), Epoch(second, "", 0, second * SECOND), Finished(8, rows))
    return Status("s1", '"public"."t"', "snapshot", (), barrier, RowsRead(rows, left, VNODES))


def test_all_of_it_is_shown() -> None:
    lag = Lag(lag_bytes=4096, lag_seconds=65, retained_bytes=5)
    of = replace(at(10, 1234), lag=lag, counts=Counts("s1", SECOND, 7, 12_345, 6))
    assert drawn(of, Pace(1500.4, 61), Window(80, plain=True), now=75.0).splitlines() == [
        '"public"."t"  stream s1',
        "phase snapshot, 1,234 rows read, as of 1970-01-01 00:00:10 UTC, 1 min 5 s ago",
        "[##################................................] 3 of 8 vnodes, 37 %",
        "###+....",
        "1,500 rows/s, about 1 min 1 s left",
        "behind 4.0 KiB and 1 min 5 s, log kept by the slot 5 B",
        "changes passed on 12,345, held back 6, counted since 1970-01-01 00:00:01 UTC",
    ]


def test_before_the_first_barrier_there_is_no_picture() -> None:
    of = Status("s1", '"public"."t"', "starting", unreachable="no connection")
    assert drawn(of, None, Window(80), now=0.0).splitlines() == [
        '"public"."t"  stream s1',
        "phase starting, 0 rows read",
        "database: no connection",
    ]


def test_why_the_database_was_not_reached_is_shown_to_its_end() -> None:
    message = "no connection to the database:\nConnection refused; check the options url, user and password"
    of = Status("s1", '"public"."t"', "starting", unreachable=message)
    lines = drawn(of, None, Window(40), now=0.0).splitlines()[2:]
    assert " ".join(lines) == f"database: {message}".replace("\n", " ")
    assert max(map(len, lines)) <= 40


@pytest.mark.parametrize("state", [VnodeState.COMPLETED, VnodeState.NOT_STARTED])
def test_vnodes_that_are_all_alike_are_not_drawn_one_by_one(state: VnodeState) -> None:
    of = replace(at(10, 1234), phase="changes", first=RowsRead(vnodes=(state,) * 8))
    assert len(drawn(of, None, Window(80, plain=True), now=75.0).splitlines()) == 3


def test_it_is_logged_that_the_snapshot_is_held() -> None:
    of = replace(at(10, 1), control=Control(paused=True))
    assert "phase snapshot (paused), 1 rows read" in drawn(of, None, Window(80), now=10.0)
    assert "paused" not in drawn(replace(of, phase="changes"), None, Window(80), now=10.0)
    waits = drawn(replace(of, phase="changes", waiting=1), None, Window(80), now=10.0)
    assert "phase changes (paused), 1 rows read, 1 request waits to read rows again" in waits


def test_rows_that_are_read_again_have_a_picture_and_a_pace_of_their_own() -> None:
    again = RowsRead(500, 400, (VnodeState.COMPLETED,) * 4 + (VnodeState.IN_PROGRESS,))
    of = replace(at(10, 1234), phase="again", again=again, waiting=2)
    found = Pace(50.0, 8.0)
    assert drawn(of, found, Window(80, plain=True), now=75.0).splitlines() == [
        '"public"."t"  stream s1',
        "phase again, 1,234 rows read, 500 rows read again,",
        "2 requests wait to read rows again, as of 1970-01-01 00:00:10 UTC, 1 min 5 s ago",
        "[########################################..........] 4 of 5 vnodes, 80 %",
        "####+",
        "50 rows/s, about 8 s left",
    ]
    found_json = as_json(of, found)
    assert (found_json["again_rows"], found_json["again_vnodes"], found_json["again_vnodes_completed"]) == (500, 5, 4)
    assert (found_json["vnodes"], found_json["requests_waiting"]) == (8, 2)
    over = drawn(replace(of, phase="changes", waiting=1), None, Window(80, plain=True), now=75.0)
    assert "3 of 8 vnodes" in over
    assert "1 request waits" in over


@pytest.mark.parametrize("width", [10, 24, 40, 79, 80, 200])
@pytest.mark.parametrize("count", [1, 7, 256, 65_536])
def test_nothing_is_wider_than_the_window_or_fills_it(width: int, count: int) -> None:
    states = tuple(list(VnodeState)[number * 3 // count] for number in range(count))
    lines = drawn(
        replace(at(10, 1), first=RowsRead(1, None, states)), Pace(1, 1), Window(width, plain=True), now=11.0
    ).splitlines()
    grid = [line for line in lines if line and not set(line) - set("#+.")]
    assert len(grid) <= MOST_GRID_LINES
    shown = "".join(grid)
    assert len(shown) == (0 if count == 1 else -(-count // -(-count // (min(width, 120) * MOST_GRID_LINES))))
    assert all(len(line) <= width for line in lines if not line.startswith("["))


def test_a_mark_that_stands_for_unlike_vnodes_says_in_progress() -> None:
    half = 10 * MOST_GRID_LINES
    states = (VnodeState.COMPLETED,) * (half - 1) + (VnodeState.NOT_STARTED,) * (half + 1)
    lines = drawn(
        replace(at(10, 1), first=RowsRead(1, None, states)), None, Window(10, plain=True), now=11.0
    ).splitlines()
    assert "".join(lines[-MOST_GRID_LINES - 1 : -1]) == "#" * 59 + "+" + "." * 60
    assert lines[-1] == "(each mark: 2 vnodes)"[:10]


@pytest.mark.parametrize(
    ("rate", "shown"), [(1000 / 3600, "0.28"), (2.0, "2"), (9.96, "10"), (10.4, "10"), (12_345.6, "12,346")]
)
def test_a_pace_that_is_slow_is_not_shown_as_none(rate: float, shown: str) -> None:
    """A stream that is throttled to a thousand rows a batch, with a batch each hour, has such a pace."""
    assert pace(rate, 3.0) == f"{shown} rows/s, about 3 s left"
    assert pace(1 / 11_000, None) == "0.33 rows/h"


def test_colours_change_nothing_but_colours() -> None:
    of = at(10, 1234)
    coloured = drawn(of, None, Window(40, coloured=True), now=10.0)
    assert "\x1b[32m███\x1b[0m\x1b[33m▒\x1b[0m\x1b[2m····\x1b[0m" in coloured
    assert re.sub("\x1b\\[\\d*m", "", coloured) == drawn(of, None, Window(40), now=10.0)


def test_programs_get_the_names_of_the_views() -> None:
    of = replace(at(1, 7, left=9), lag=Lag(lag_bytes=3), counts=Counts("s1", 0, 1, 5, 6))
    assert as_json(of, Pace(2.0, None)) == {
        "stream": "s1",
        "table": '"public"."t"',
        "phase": "snapshot",
        "paused": False,
        "max_rows": None,
        "epoch": 1,
        "as_of": "1970-01-01T00:00:01.000+00:00",
        "snapshot_rows": 7,
        "snapshot_rows_left": 9,
        "vnodes": 8,
        "vnodes_completed": 3,
        "vnodes_in_progress": 1,
        "requests_waiting": 0,
        "rows_per_second": 2.0,
        "seconds_left": None,
        "changes_passed_on": 5,
        "changes_held_back": 6,
        "changes_counted_since": "1970-01-01T00:00:00.000+00:00",
        "lag_bytes": 3,
    }


@pytest.mark.parametrize("microseconds", [1_900_000_000_123_456_789, 1 << 70])
def test_a_moment_that_lies_too_far_away_for_python_is_shown_like_any(microseconds: int) -> None:
    """A commit to a Delta table that gives its time in another unit has such a moment."""
    assert re.fullmatch(r"\d{5,6}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", iso(microseconds))
    assert re.fullmatch(r"\d{5,6}-\d\d-\d\d \d\d:\d\d:\d\d UTC", moment(microseconds))


@pytest.mark.parametrize(
    ("count", "text"),
    [
        *((0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), ((1 << 20) - 1, "1.0 MiB")),
        *((5 << 30, "5.0 GiB"), (1 << 52, "4096.0 TiB")),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0 s"), (59.4, "59 s"), (60, "1 min 0 s"), (3599, "59 min 59 s"), (3660, "1 h 1 min"), (90000, "1 d 1 h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
