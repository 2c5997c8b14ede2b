"""The one policy that says what is tried again, how soon, and for how long."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from backfill.errors import TransientError
from backfill.upstream.postgres.failures import translating

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

    def run(self, operation: Callable[[], T], recover: Callable[[], None]) -> T:
        """The operation's result. `recover` is called before each further try; definite errors are not tried again."""
        began: float | None = None
        pause = self.first
        while True:
            try:
                with translating():
                    return operation()
            except TransientError as error:
                now = self.clock()
                began = now if began is None else began
                if now - began + pause > self.give_up_after:
                    raise
                logger.warning("trying again in %.1f s: %s", pause, error)
                self.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret
                pause = min(pause * 2, self.most)
                recover()

    def pause_or_raise(self, failures: int) -> None:
        """For a caller with a loop of its own, inside `except`: waits as before try number `failures + 1`."""
        pause = min(self.first * 2 ** (failures - 1), self.most)
        if pause * failures > self.give_up_after:
            raise  # noqa: PLE0704 - the error that is being handled
        self.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret
