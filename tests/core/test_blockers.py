"""What a stream says while it waits in the server."""

from __future__ import annotations

import logging
import time
from contextlib import nullcontext
from itertools import pairwise
from queue import Queue
from typing import TYPE_CHECKING, Any

import pytest

from backfill.upstream.postgres.replication import blockers

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class Sessions:
    def session(self) -> AbstractContextManager[Any]:
        return nullcontext()


def test_who_waits_for_long_says_so_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(blockers, "SAY_AFTER", 0.02)
    monkeypatch.setattr(blockers, "SAY_EVERY", 0.1)
    asked: Queue[float] = Queue()

    def ask(_: object) -> str:
        asked.put(time.monotonic())
        return "no standby"

    sessions: Any = Sessions()
    with (
        caplog.at_level(logging.WARNING, "backfill"),
        blockers.asking_in_background(sessions, "changes", ask),
    ):
        times = [asked.get(timeout=60) for _ in range(5)]
    rests = [later - earlier for earlier, later in pairwise(times)]
    assert all(rest > 0.9 * least for rest, least in zip(rests, [0.04, 0.08, 0.1, 0.1], strict=True)), rests
    assert caplog.messages.count("waiting for changes: no standby") >= 4
