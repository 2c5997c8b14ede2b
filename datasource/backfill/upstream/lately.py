"""A stream's lag is shown to people: it is asked for more often than a new look at the upstream is worth."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from backfill.upstream.lag import UNKNOWN, Lag

INTERVAL: Final = 1.0
"""Seconds for which what was found last is given again."""


class Lately:
    """What the last look found, and when that was."""

    def __init__(self) -> None:
        self._found = UNKNOWN
        self._looked_at = 0.0

    def lag(self, look: Callable[[], Lag]) -> Lag:
        """Looks anew only if the last look is INTERVAL old, or found nothing."""
        if self._found == UNKNOWN or time.monotonic() - self._looked_at >= INTERVAL:
            self._found, self._looked_at = look(), time.monotonic()
        return self._found
