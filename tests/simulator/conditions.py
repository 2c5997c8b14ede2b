"""What schedules run under: everything small, and nothing by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

T = TypeVar("T")


@contextmanager
def simulated() -> Iterator[None]:
    """A table of 90 rows has several readers and its changes several staged files; a seed gives the same again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("backfill.chunks.MIN_SPLIT_ROWS", 3)
        patch.setattr("backfill.packing.INLINE_BYTES", 2000)
        patch.setattr("backfill.packing.FILE_BYTES", 3000)
        patch.setattr("backfill.handoff.read_ahead", without_a_thread)
        yield


def without_a_thread(items: Iterator[T]) -> Iterator[T]:
    return items
