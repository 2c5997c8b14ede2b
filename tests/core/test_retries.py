"""What is tried again, how soon and for how long: with a clock of the test's own."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill.errors import ConnectionLostError, DefiniteError, TableError, TransientError
from backfill.upstream.postgres.session.retries import RetryPolicy, Tries


@dataclass
class Clock:
    """A clock whose time passes only while somebody sleeps or works."""

    now: float = 1000.0
    slept: list[float] = field(default_factory=list)

    def read(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def policy(self, *, first: float = 0.1, most: float = 5.0, give_up_after: float = 120.0) -> RetryPolicy:
        return RetryPolicy(first, most, give_up_after, self.read, self.sleep)


@dataclass
class Operation:
    """Fails so many times, each time after `takes` seconds, then works; keeps the order of its tries and recoveries."""

    clock: Clock
    failures: int
    error: Exception
    takes: float = 0.0
    events: list[str] = field(default_factory=list)

    def __call__(self) -> str:
        self.events.append("try")
        self.clock.now += self.takes
        if self.events.count("try") <= self.failures:
            raise self.error
        return "result"

    def recover(self) -> None:
        self.events.append("recover")


LOST = ConnectionLostError("lost")


def test_what_works_is_done_once_and_waits_for_nothing() -> None:
    clock = Clock()
    operation = Operation(clock, 0, LOST)
    assert clock.policy().run(operation, recover=operation.recover) == "result"
    assert (operation.events, clock.slept) == (["try"], [])


@pytest.mark.parametrize("error", [LOST, psycopg.OperationalError("gone"), psycopg.errors.AdminShutdown("going down")])
def test_a_transient_error_is_tried_again_after_mending(error: Exception) -> None:
    clock = Clock()
    operation = Operation(clock, 2, error)
    assert clock.policy().run(operation, recover=operation.recover) == "result"
    assert operation.events == ["try", "recover", "try", "recover", "try"]
    assert len(clock.slept) == 2


@pytest.mark.parametrize("error", [TableError("no"), psycopg.errors.InsufficientPrivilege("permission denied")])
def test_a_definite_error_is_not_tried_again(error: Exception) -> None:
    clock = Clock()
    operation = Operation(clock, 1, error)
    with pytest.raises(DefiniteError):
        clock.policy().run(operation, recover=operation.recover)
    assert (operation.events, clock.slept) == (["try"], [])


def test_an_error_of_the_programs_own_is_not_tried_again() -> None:
    clock = Clock()
    operation = Operation(clock, 1, ValueError("a mistake"))
    with pytest.raises(ValueError, match="a mistake"):
        clock.policy().run(operation, recover=operation.recover)
    assert operation.events == ["try"]


def test_pauses_double_up_to_the_longest_and_are_shortened_at_random_by_half_at_most() -> None:
    clock = Clock()
    operation = Operation(clock, 9, LOST)
    clock.policy(first=0.1, most=5.0).run(operation, recover=operation.recover)
    whole = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    assert all(long / 2 <= slept <= long for slept, long in zip(clock.slept, whole, strict=True))
    assert len({slept / long for slept, long in zip(clock.slept, whole, strict=True)}) > 1


@given(st.floats(0.0, 30.0), st.integers(0, 10_000))
def test_it_gives_up_with_the_last_error_within_the_time_since_the_first_failure(takes: float, seed: int) -> None:
    random.seed(seed)
    clock = Clock()
    operation = Operation(clock, 10_000, LOST, takes)
    with pytest.raises(TransientError, match="lost"):
        clock.policy(give_up_after=60.0).run(operation, recover=operation.recover)
    since_the_first_failure = clock.now - 1000.0 - takes
    assert since_the_first_failure <= 60.0 + takes
    assert since_the_first_failure >= 60.0 - 5.0


def test_a_first_try_that_takes_long_is_not_held_against_the_second() -> None:
    clock = Clock()
    operation = Operation(clock, 1, LOST, takes=100.0)
    assert clock.policy(give_up_after=60.0).run(operation, recover=operation.recover) == "result"


def test_a_loop_of_its_own_waits_as_long_and_gives_up_with_its_error() -> None:
    clock = Clock()
    policy = clock.policy(first=0.1, most=5.0, give_up_after=60.0)

    def loop() -> None:
        tries = Tries(policy)
        while True:
            try:
                raise LOST
            except TransientError as error:
                tries.pause_or_raise(error)

    with pytest.raises(ConnectionLostError, match="lost"):
        loop()
    whole = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, *[5.0] * 20]
    assert all(long / 2 <= slept <= long for slept, long in zip(clock.slept, whole, strict=False))
    assert 55.0 < sum(clock.slept) <= 60.0
