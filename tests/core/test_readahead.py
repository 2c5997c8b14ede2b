"""Making items ahead of their use, in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill.readahead import read_ahead
from integration.waiting import eventually


def threads() -> int:
    return sum(thread.name == "backfill-readahead" for thread in threading.enumerate())


class Numbers:
    """A generator that tells how far it got and whether it was closed."""

    def __init__(self, count: int, error: BaseException | None = None) -> None:
        self.count = count
        self.error = error
        self.made = 0
        self.closed = False

    def make(self) -> Generator[int, None, None]:
        try:
            for number in range(self.count):
                self.made += 1
                yield number
            if self.error is not None:
                raise self.error
        finally:
            self.closed = True


@given(st.integers(0, 20), st.integers(1, 5))
def test_the_items_come_in_their_order(count: int, depth: int) -> None:
    assert list(read_ahead(Numbers(count).make(), depth)) == list(range(count))


def test_it_stays_a_few_items_ahead_and_no_more() -> None:
    numbers = Numbers(100)
    taken = read_ahead(numbers.make(), 2)
    assert next(taken) == 0
    eventually(lambda: numbers.made == 1 + 2 + 1)
    time.sleep(0.02)
    assert numbers.made == 1 + 2 + 1, "one taken, two waiting, one in hand"
    assert list(taken) == list(range(1, 100))


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), MemoryError()])
def test_an_error_comes_after_the_items_before_it(error: BaseException) -> None:
    taken = read_ahead(Numbers(3, error).make(), 2)
    assert [next(taken) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(type(error)) as caught:
        next(taken)
    assert caught.value is error


def test_a_consumer_that_stops_early_ends_the_thread_and_closes_the_items() -> None:
    before = threads()
    numbers = Numbers(1000)
    taken = read_ahead(numbers.make(), 2)
    next(taken)
    taken.close()  # type: ignore[attr-defined]  # a generator, which the signature does not promise
    eventually(lambda: numbers.closed and threads() <= before)
    assert numbers.made < 10


def test_stages_can_stand_one_after_the_other() -> None:
    before = threads()
    numbers = Numbers(50)

    def doubled() -> Generator[int, None, None]:
        for number in read_ahead(numbers.make(), 2):
            yield 2 * number

    assert list(read_ahead(doubled(), 2)) == list(range(0, 100, 2))
    taken = read_ahead(doubled(), 2)
    next(taken)
    del taken
    eventually(lambda: threads() <= before)
