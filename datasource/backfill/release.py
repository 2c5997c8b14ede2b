"""Letting go of a state that readers are pinned to."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from backfill.handoff import Chunk
from backfill.upstream import Pin, Upstream

logger = logging.getLogger("backfill")

RELEASE_INTERVAL: Final = 0.1
"""Seconds between two looks at whether all chunks of a batch are staged."""

Watch: TypeAlias = Callable[[Callable[[], bool]], Callable[[], None]]
"""Calls a look again and again until it returns true. Returns a function that ends the watch earlier."""


def in_background(look: Callable[[], bool]) -> Callable[[], None]:
    """A `Watch` in a thread of its own, which ends with the process."""
    ended = threading.Event()

    def watch() -> None:
        failing = False
        while not ended.wait(RELEASE_INTERVAL):
            try:
                if look():
                    return
            except Exception as error:  # noqa: BLE001 - a file system of Python's (`fsspec+…`) raises what it likes
                # The next look may succeed. To give up here would hold the snapshot until the next trigger.
                if not failing:
                    logger.warning("it is not known yet whether a batch has been read: %s", error)
                failing = True

    threading.Thread(target=watch, name="backfill-release", daemon=True).start()
    return ended.set


class Release:
    """Lets go of a pin as soon as its readers are done, not when Spark asks for the next batch.

    An open snapshot holds back vacuum in the whole database, and the next trigger may be an hour away.
    """

    def __init__(self, upstream: Upstream, watch: Watch) -> None:
        self._upstream = upstream
        self._watch = watch
        self._end_watch: Callable[[], None] | None = None

    def when_staged(self, pin: Pin, chunks: Iterable[Chunk]) -> None:
        """Releases the pin when all these chunks are staged."""
        left = deque(chunks)

        def look() -> bool:
            # Stops at the first that is missing: on an object store each question is a request.
            while left and left[0].is_staged:
                left.popleft()
            if not left:
                self._upstream.release(pin)
            return not left

        self.stop()
        self._end_watch = self._watch(look)

    def stop(self) -> None:
        """Ends the watch; what is pinned stays pinned."""
        if self._end_watch is not None:
            self._end_watch()
        self._end_watch = None
