"""A stream's lag, as found lately: it is shown to people, and asked for more often than a new look is worth."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from backfill.upstream.lag import UNKNOWN, Lag

INTERVAL: Final = 1.0
"""Seconds for which the lag that was found last is given again."""


class RecentLag:
    """What the last look found, and when that was."""

    def __init__(self) -> None:
        self._found, self._of = UNKNOWN, ""
        self._looked_at = 0.0

    def lag(self, position: str, look: Callable[[], Lag]) -> Lag:
        """The lag by the last look; looks anew if that was from another position, is INTERVAL old, or found nothing.

        The lag that was found before a batch is not given for its end: after the last batch of a backlog nobody may ask
        again.
        """
        is_lately = position == self._of and time.monotonic() - self._looked_at < INTERVAL
        if self._found == UNKNOWN or not is_lately:
            self._found, self._of, self._looked_at = look(), position, time.monotonic()
        return self._found
