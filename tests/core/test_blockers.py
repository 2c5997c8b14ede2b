"""What a stream says while it waits in the server."""

from __future__ import annotations

import logging
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from backfill.upstream.postgres import blockers

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class Sessions:
    def session(self) -> AbstractContextManager[Any]:
        return nullcontext()


def test_who_waits_for_long_says_so_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(blockers, "SAY_AFTER", 0.02)
    sessions: Any = Sessions()
    with (
        caplog.at_level(logging.WARNING, "backfill"),
        blockers.asking_meanwhile(sessions, "changes", lambda _: "no standby"),
    ):
        time.sleep(1.0)
    assert 2 <= caplog.messages.count("waiting for changes: no standby") <= 6
