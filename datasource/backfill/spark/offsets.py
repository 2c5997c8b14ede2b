"""Offsets on their way to Spark and back: read once, and not in each call that names them.

`latestOffset` gives one; it comes back as the end of `partitions`, and as the start of the next two calls. Reading it
checks every vnode: with thousands of them, that takes longer than all else that planning itself does.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from backfill.errors import OffsetError
from backfill.offset import Json, Offset, from_json, to_json

KEPT: Final = 2
"""How many offsets are remembered: a batch has a start and an end."""


class Offsets:
    """The offsets that were given or taken last, each as JSON and as the value that it stands for."""

    def __init__(self) -> None:
        self._last: deque[tuple[Json, Offset]] = deque(maxlen=KEPT)

    def give(self, offset: Offset) -> Json:
        """The offset as JSON, which nobody changes."""
        for known, last in self._last:
            if last is offset:
                return known
        value = to_json(offset)
        self._last.append((value, offset))
        return value

    def take(self, value: Json) -> Offset:
        """Reads an offset; raises OffsetError as `from_json` does. The caller must not change the value afterwards."""
        for known, offset in self._last:
            if known == value:
                return offset
        try:
            offset = from_json(value)
        except OffsetError as error:
            raise OffsetError(
                f"the checkpoint holds {error.message}. If it is damaged, restore it, or start with a fresh "
                "checkpointLocation"
            ) from error
        self._last.append((value, offset))
        return offset
