"""Contenders that take turns, and the ratios of their times."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
import psutil

IDLE_PERCENT: Final = 10
LOOK: Final = 0.3
"""Seconds over which the machine's load is looked at."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one contender: how many rows, in how many seconds, and where the time went as far as it tells."""

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
        """How many times as fast the one was as the other, round by round."""
        pairs = zip(self.runs[name], self.runs[to], strict=True)
        return Spread.of([run.speed / other.speed for run, other in pairs])

    def part(self, name: str, part: str) -> Spread:
        """How many seconds this part of the runs took."""
        return Spread.of([run.parts[part] for run in self.runs[name]])


def clocks() -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The time, and the processor's time, in seconds."""
    return np.array([time.perf_counter(), time.process_time()])


def wait_for_calm(patience: float) -> None:
    """Returns as soon as nobody else keeps the machine busy, or after so many seconds."""
    give_up = time.monotonic() + patience
    while time.monotonic() < give_up and psutil.cpu_percent(LOOK) > IDLE_PERCENT:
        pass


@dataclass(frozen=True, slots=True)
class Rounds:
    """How often contenders take turns, and how long each may wait for a calm machine before it begins."""

    count: int
    patience: float = 0.0
    warm_up: int = 1
    """How many rounds come first that do not count."""


def take_turns(contenders: Mapping[str, Contender], rounds: Rounds) -> Results:
    """Runs every contender once a round, forwards and backwards in turn."""
    runs: dict[str, list[Run]] = {name: [] for name in contenders}
    for number in range(rounds.warm_up + rounds.count):
        turns = list(contenders.items())
        for name, contender in turns if number % 2 == 0 else reversed(turns):
            wait_for_calm(rounds.patience)
            run = contender()
            if number >= rounds.warm_up:
                runs[name].append(run)
    return Results(runs)
