"""Numbers as keys, ranges of them, and a table of them that is measured as an upstream would do it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from backfill.plan import Extent, Limits, Measure, plan
from backfill.progress import Frontier
from backfill.vnode import Key, KeyRange

numbers = st.lists(st.integers(0, 60), unique=True).map(sorted)
cuts = st.lists(st.integers(0, 60), max_size=8, unique=True).map(sorted)
limits = st.builds(Limits, st.integers(1, 25), st.integers(1, 6), st.integers(1, 30), st.none() | st.integers(1, 3))


KEYS = range(20)
"""The keys of tests that look at each key: numbers as text, which the code never compares."""


def key(number: int) -> Key:
    return (str(number),)


def ends(item: KeyRange) -> tuple[float, float]:
    after, upto = item.after, item.upto
    return (-1 if after is None else int(after[0])), (float("inf") if upto is None else int(upto[0]))


def holds(item: KeyRange, number: int) -> bool:
    after, upto = ends(item)
    return after < number <= upto


@dataclass
class Table:
    """A table of sorted numbers, measured as an upstream would do it; keeps the requests."""

    rows: list[int]
    asked: list[tuple[Measure, ...]] = field(default_factory=list)

    def within(self, item: KeyRange) -> list[int]:
        after, upto = ends(item)
        return self.rows[bisect_right(self.rows, after) : bisect_right(self.rows, upto)]

    def measure(self, requests: tuple[Measure, ...]) -> list[Extent]:
        self.asked.append(requests)
        return [self._extent(request) for request in requests]

    def _extent(self, request: Measure) -> Extent:
        found = self.within(request.range)
        assert len(found) > request.limit or not request.known_more
        if len(found) > request.limit:
            return Extent(request.limit, key(found[request.limit - 1]))
        return Extent(len(found), None)

    def plan(self, frontier: Frontier, limits: Limits) -> Frontier:
        planning = plan(frontier, limits)
        try:
            requests = next(planning)
            while True:
                requests = planning.send(self.measure(requests))
        except StopIteration as done:
            result: Frontier = done.value
            return result


def start(bounds: Sequence[int]) -> Frontier:
    return Frontier.at_start(tuple(key(bound) for bound in bounds))


def emitted(table: Table, frontier: Frontier) -> list[int]:
    return [number for item in frontier.coverage for number in table.within(item)]
