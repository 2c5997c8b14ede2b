"""Contenders that take turns, and the ratios of their times."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Run:
    """One contender's one go: how many rows, in how long, and where the time went as far as it says so."""

    rows: int
    seconds: float
    parts: Mapping[str, float] = field(default_factory=dict)

    @property
    def speed(self) -> float:
        """Rows per second."""
        return self.rows / self.seconds


Contender: TypeAlias = Callable[[], Run]


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle and the ends of a few measurements."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Results:
    """The runs of each contender; those at the same place belong to the same round."""

    runs: Mapping[str, Sequence[Run]]

    def speed(self, name: str) -> Spread:
        return Spread.of([run.speed for run in self.runs[name]])

    def ratio(self, name: str, to: str) -> Spread:
        """How many times as fast as the other, round by round."""
        pairs = zip(self.runs[name], self.runs[to], strict=True)
        return Spread.of([run.speed / other.speed for run, other in pairs])

    def part(self, name: str, part: str) -> Spread:
        """Seconds."""
        return Spread.of([run.parts[part] for run in self.runs[name]])


def take_turns(contenders: Mapping[str, Contender], *, rounds: int, warm_up: int = 1) -> Results:
    """Every contender once a round, forwards and backwards in turn; the first `warm_up` rounds do not count."""
    runs: dict[str, list[Run]] = {name: [] for name in contenders}
    for number in range(warm_up + rounds):
        turns = list(contenders.items())
        for name, contender in turns if number % 2 == 0 else reversed(turns):
            run = contender()
            if number >= warm_up:
                runs[name].append(run)
    return Results(runs)
