"""The values that the golden files stand for."""

from __future__ import annotations

from typing import Final

from backfill.control import Control, ReadAgain, Stop
from backfill.epoch import Epoch
from backfill.offset import Ahead, Barrier, InitialOffset, Offset
from backfill.plan import Split
from backfill.progress import Again, CompletedRun, Finished, Frontier, InProgress, NotStarted, Vnode
from backfill.staging.manifest import GivenUp, Manifest, PlannedSplit, ReadLater
from backfill.vnode import Key, KeyRange

UPSTREAM: Final = (
    ("slot", "backfill_public_orders_1f0c9a77"),
    ("publication", "backfill_public_orders_1f0c9a77"),
    ("system", "7412345678901234567"),
    ("timeline", "1"),
)

# A key of a 64-bit integer, a numeric, a timestamp, bytes and a text.
SMALLEST: Final[Key] = ("-9223372036854775808", "-0.10", "0001-01-01 00:00:00 BC", "\\x", "")
EARLY: Final[Key] = ("-1", "NaN", "1999-12-31 23:59:59.999999+00", "\\x00ff", 'a "quoted" \\ text')
MIDDLE: Final[Key] = (
    "0",
    "12345678901234567890.123456789",
    "2024-02-29 12:00:00.000001+00",
    "\\xdeadbeef",
    "Zoë 日本 🐘",
)
LATE: Final[Key] = ("9007199254740993", "1E+3", "infinity", "\\x5c", "two\nlines\tand \x7f")
LARGEST: Final[Key] = ("9223372036854775807", "Infinity", "294276-12-31 23:59:59.999999+00", "\\xffff", "\U0010ffff")

SNAPSHOT: Final = Epoch(3, "16/B374D848 740:745:741,743", 97_500_002_376, 1_709_208_000_000_001)
LOG: Final = Epoch(9_000_000_000, "16/B374F000", 97_500_008_448, 1_709_208_060_000_000)

FINISHED: Final = Barrier("1f0c9a77", UPSTREAM, LOG, Finished(256, 1_000_000))

MID_BACKFILL: Final = Barrier(
    "1f0c9a77",
    UPSTREAM,
    SNAPSHOT,
    Frontier(
        (
            CompletedRun(0, KeyRange(None, EARLY), (812, 0, 790)),
            Vnode(3, KeyRange(EARLY, MIDDLE), InProgress(("-1", "NaN", "2000-01-01 00:00:00+00", "\\x01", "b"), 399)),
            Vnode(4, KeyRange(MIDDLE, LATE), NotStarted()),
            Vnode(5, KeyRange(LATE, LARGEST), NotStarted()),
            Vnode(6, KeyRange(LARGEST, None), InProgress(LARGEST, 1)),
        )
    ),
)

OFFSETS: Final[dict[str, Offset]] = {
    "nothing": InitialOffset(),
    "mid-backfill": MID_BACKFILL,
    "one-vnode": Barrier("a", (), Epoch(1, "", 0, 0), Frontier((Vnode(0, KeyRange(None, None), NotStarted()),))),
    "all-completed": Barrier("a", (), Epoch(2, "7", 7, 1), Frontier((CompletedRun(0, KeyRange(None, None), (5, 0)),))),
    "finished": FINISHED,
    "ahead": Barrier(
        "1f0c9a77",
        UPSTREAM,
        SNAPSHOT,
        Finished(1, 0),
        ahead=(
            Ahead(KeyRange(None, SMALLEST), "16/B374D900 746:746:"),
            Ahead(KeyRange(EARLY, MIDDLE), "16/B374D900 746:746:"),
            Ahead(KeyRange(LATE, None), "16/B374DA00 750:752:750"),
        ),
    ),
    "base": Barrier("1f0c9a77", UPSTREAM, LOG, Finished(7, 2002), resumed_from=MID_BACKFILL),
}

AGAIN: Final[dict[str, Offset]] = {
    "under-way": Barrier(
        "1f0c9a77",
        UPSTREAM,
        SNAPSHOT,
        Finished(256, 1_000_000),
        again=Again(
            "5e0c9a77",
            Frontier(
                (
                    CompletedRun(0, KeyRange(SMALLEST, EARLY), (812, 0)),
                    Vnode(
                        2, KeyRange(EARLY, MIDDLE), InProgress(("-1", "NaN", "2000-01-01 00:00:00+00", "\\x01", "b"), 9)
                    ),
                    Vnode(3, KeyRange(MIDDLE, LATE), NotStarted()),
                    Vnode(4, KeyRange(LATE, LARGEST), NotStarted()),
                    Vnode(5, KeyRange(SMALLEST, EARLY), NotStarted()),
                    CompletedRun(6, KeyRange(None, SMALLEST), (3,)),
                )
            ),
        ),
    ),
    "whole-table": Barrier(
        "a", (), Epoch(2, "7", 7, 1), Finished(1, 5), again=Again("b", Frontier.at_start((SMALLEST, LARGEST)))
    ),
    "done": Barrier("1f0c9a77", UPSTREAM, LOG, Finished(7, 2002), again=Again("5e0c9a77", Finished(16, 812))),
}

REQUESTS: Final = {
    "requests": Control(
        max_rows=1000,
        requests=(
            ReadAgain("5e0c9a77", "1f0c9a77", EARLY, LATE),
            ReadAgain("0d41b2c8", "1f0c9a77", None, MIDDLE),
            Stop("77aa0912", "1f0c9a77"),
            ReadAgain("c0ffee00", "1f0c9a77"),
        ),
    ),
}

GIVEN_UP: Final = {
    "given-up": Manifest(
        (
            PlannedSplit(Split((KeyRange(None, EARLY), KeyRange(MIDDLE, LATE)), 1602), reading=GivenUp()),
            PlannedSplit(Split((KeyRange(LARGEST, None),), 1)),
        )
    ),
}

CONTROLS: Final = {
    "paused": Control(paused=True),
    "throttled": Control(max_rows=9_223_372_036_854_775_807),
    "paused-and-throttled": Control(paused=True, max_rows=0),
    "untouched": Control(),
}

MANIFESTS: Final[dict[str, Manifest]] = {
    "first-attempt": Manifest(
        (
            PlannedSplit(Split((KeyRange(None, EARLY), KeyRange(MIDDLE, LATE)), 1602)),
            PlannedSplit(Split((KeyRange(LARGEST, None),), 1)),
        )
    ),
    "read-again": Manifest(
        (
            PlannedSplit(Split((KeyRange(None, None),), 7), attempt=3, reading=ReadLater("16/B374DA00 750:752:750")),
            PlannedSplit(Split((KeyRange(MIDDLE, LATE),), 9_223_372_036_854_775_807)),
        )
    ),
}
