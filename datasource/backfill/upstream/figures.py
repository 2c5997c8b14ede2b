"""Figures for whoever watches, who asks for them more often than they are worth a look."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

INTERVAL: Final = 1.0
"""Seconds for which those there are will do."""


class Figures:
    """Those of the last look."""

    def __init__(self) -> None:
        self._found: Mapping[str, int] = {}
        self._looked_at = 0.0

    def lately(self, look: Callable[[], Mapping[str, int]]) -> dict[str, int]:
        """By a new look, unless one has found some within the interval."""
        if not self._found or time.monotonic() - self._looked_at >= INTERVAL:
            self._found, self._looked_at = look(), time.monotonic()
        return dict(self._found)
