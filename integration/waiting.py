"""Waiting for what happens by itself in another process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def eventually(
    is_so: Callable[[], bool], *, seconds: float = 60.0, told: Callable[[], str] = lambda: "it did not happen"
) -> None:
    """Returns when it is so; fails with what is `told` when it does not become so."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, told()
        time.sleep(0.02)
