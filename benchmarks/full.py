"""What whole rows before and after each change cost: the same backlog with and without the last row of every key.

The table has more keys than the backlog touches at once, so that what is looked up is spread over the state. A change
counts once, also where it comes as a row before and a row after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from benchmarks.bed import Bed
from benchmarks.changes import Rewindable, change
from benchmarks.report import Comparison, Table, ratios, speeds, where
from benchmarks.rounds import Rounds, Run, take_turns
from benchmarks.stream import PARTS, WALL

ACCOUNTS: Final = 2_000_000
ROWS: Final = 500_000
SIZE: Final = 100
"""Changes per transaction."""

LOGGED: Final = "logged"
FULL: Final = "changelog=full"
UPSERT: Final = "envelope=upsert"


def run(bed: Bed, rows: int | None, rounds: Rounds) -> Iterator[Table]:
    accounts = bed.fill(ACCOUNTS)
    streams = {
        LOGGED: Rewindable.backfilled(bed, "logged"),
        FULL: Rewindable.backfilled(bed, "full", changelog="full"),
        UPSERT: Rewindable.backfilled(bed, "upsert", envelope="upsert"),
    }
    count = max(1, (rows or ROWS) // SIZE)
    change(bed, transactions=count, size=SIZE, rows=accounts)
    results = take_turns({name: _contender(stream, name, count * SIZE) for name, stream in streams.items()}, rounds)
    for stream in streams.values():
        stream.drop()
    yield speeds(
        "Whole rows: speed of changes",
        results,
        [f"{count * SIZE} updates of pgbench_accounts, which has {accounts} rows, in transactions of {SIZE}."],
        unit="changes",
    )
    yield ratios("Whole rows: ratios", results, [Comparison(FULL, LOGGED), Comparison(UPSERT, LOGGED)])
    yield where("Whole rows: where a stream's time goes", results, [*PARTS, WALL])


def _contender(stream: Rewindable, name: str, expected: int) -> Callable[[], Run]:
    images = 1 if name == LOGGED else 2

    def contender() -> Run:
        stream.rewind()
        found = stream.drain()
        # Making the streams that come after this one takes a hundred changes each, of which some change nothing.
        if abs(found.rows - expected * images) > 1000:
            raise AssertionError(f"{found.rows} rows were read of {expected} changes")
        return replace(found, rows=expected)

    return contender
