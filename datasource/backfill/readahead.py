"""Making the next item while this one is used: for the stages of a path that spend their time in C or in a server."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_LOOK: Final = 0.1
"""Seconds between two looks whether the consumer has stopped."""


def read_ahead(items: Generator[T, None, None], depth: int = 2) -> Iterator[T]:
    """The items, made by a thread of their own that is at most `depth` of them ahead; its error is raised here.

    A consumer that stops early is not kept waiting: the thread closes `items` once it has made the item it is at.
    """
    line = _Queue[T](depth)
    threading.Thread(target=line.make, args=[items], name="backfill-readahead", daemon=True).start()
    try:
        yield from line
    finally:
        line.stopped.set()


@dataclass(frozen=True)
class _Made(Generic[T]):
    item: T


@dataclass(frozen=True)
class _Ended:
    error: BaseException | None


class _Queue(Generic[T]):
    """What has been made and not been taken yet."""

    def __init__(self, depth: int) -> None:
        self._queue: queue.Queue[_Made[T] | _Ended] = queue.Queue(depth)
        self.stopped = threading.Event()

    def make(self, items: Generator[T, None, None]) -> None:
        try:
            for item in items:
                if not self._put(_Made(item)):
                    items.close()
                    return
        except BaseException as error:  # noqa: BLE001 - raised by the consumer
            self._put(_Ended(error))
        else:
            self._put(_Ended(None))

    def _put(self, entry: _Made[T] | _Ended) -> bool:
        """Waits for a free place; returns False where the consumer has stopped."""
        while not self.stopped.is_set():
            try:
                self._queue.put(entry, timeout=_LOOK)
            except queue.Full:
                continue
            return True
        return False

    def __iter__(self) -> Iterator[T]:
        while True:
            match self._queue.get():
                case _Made(item=item):
                    yield item
                case _Ended(error=error):
                    if error is not None:
                        raise error
                    return
