"""Whoever watches for the end of a batch goes on when a look fails."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event

import pytest

from backfill.errors import StagingError
from backfill.release import in_background


def test_a_look_that_fails_is_not_the_last_one(caplog: pytest.LogCaptureFixture) -> None:
    seen = Event()

    def looks() -> Iterator[bool]:
        yield False
        seen.set()
        yield True
        raise AssertionError("looked again")

    left, failures = looks(), [StagingError("the storage is away")] * 2

    def look() -> bool:
        if failures:
            raise failures.pop()
        return next(left)

    in_background(look)
    assert seen.wait(30)
    assert caplog.text.count("the storage is away") == 1
