"""Waiting for what happens by itself in another process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

PASTIMES = ("waiting for ", "trying again in ")
"""How messages begin that are logged while something waits for a slow server."""


def eventually(
    is_so: Callable[[], bool], *, seconds: float = 60.0, otherwise: Callable[[], str] = lambda: "it did not happen"
) -> None:
    """Returns as soon as `is_so()` holds. If it does not within `seconds`, fails with what `otherwise()` says then."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"in vain for {seconds:.0f} s: {otherwise()}"
        time.sleep(0.02)


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged except about waiting: on a busy machine a stream may have to wait for its server, and says so."""
    return [message for message in caplog.messages if not message.startswith(PASTIMES)]
