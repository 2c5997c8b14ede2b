"""Waiting for what happens by itself in another process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

PASTIMES = ("waiting for ", "trying again in ")
"""What is logged by whoever waits for a server that takes its time."""


def eventually(
    is_so: Callable[[], bool], *, seconds: float = 60.0, told: Callable[[], str] = lambda: "it did not happen"
) -> None:
    """Returns as soon as `is_so`. Where it is not after so many seconds, fails with what is `told` then."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"in vain for {seconds:.0f} s: {told()}"
        time.sleep(0.02)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged of the matter: on a busy machine a stream may have to wait for its server, and says that too."""
    return [message for message in caplog.messages if not message.startswith(PASTIMES)]
