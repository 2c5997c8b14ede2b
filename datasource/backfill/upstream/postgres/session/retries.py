"""The one policy that says what is tried again, how soon, and for how long."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from backfill.errors import TransientError
from backfill.upstream.postgres.session.failures import translating

logger = logging.getLogger("backfill")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential back-off with jitter, until `give_up_after` seconds have passed since the first failure."""

    first: float = 0.1
    most: float = 5.0
    give_up_after: float = 120.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def run(self, operation: Callable[[], T], *, recover: Callable[[], None] = lambda: None) -> T:
        """The operation's result. `recover` is called before each further try; definite errors are not tried again."""
        tries = Tries(self)
        while True:
            try:
                with translating():
                    return operation()
            except TransientError as error:
                tries.pause_or_raise(error)
                recover()


class Tries:
    """The tries of one operation, for a caller with a loop of its own."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self.succeeded()

    def succeeded(self) -> None:
        """Starts counting anew: what fails from now on has not failed before."""
        self._began: float | None = None
        self._pause = self._policy.first

    def pause_or_raise(self, error: TransientError) -> None:
        """Waits for as long as is due before the next try, or raises the error where there is to be none."""
        policy, now = self._policy, self._policy.clock()
        if self._began is None:
            self._began = now
        if now - self._began + self._pause > policy.give_up_after:
            raise error
        logger.warning("trying again in %.1f s: %s", self._pause, error)
        policy.sleep(self._pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret
        self._pause = min(self._pause * 2, policy.most)
