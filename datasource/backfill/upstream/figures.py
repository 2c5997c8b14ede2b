"""Figures that are shown to people: asked for more often than a new look at the upstream is worth."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

INTERVAL: Final = 1.0
"""Seconds for which the last figures are given again."""


class Figures:
    """The figures of the last look, and when that was."""

    def __init__(self) -> None:
        self._found: Mapping[str, int] = {}
        self._looked_at = 0.0

    def lately(self, look: Callable[[], Mapping[str, int]]) -> dict[str, int]:
        """The figures; looks anew only if the last look is INTERVAL old, or found none."""
        if not self._found or time.monotonic() - self._looked_at >= INTERVAL:
            self._found, self._looked_at = look(), time.monotonic()
        return dict(self._found)
