"""The conditions that schedules run under: everything is small, and nothing happens by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

T = TypeVar("T")


@contextmanager
def simulated() -> Iterator[None]:
    """Makes a table of 90 rows take several readers, and its changes several staged files; a seed repeats exactly."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("backfill.chunks.MIN_SPLIT_ROWS", 3)
        patch.setattr("backfill.packing.INLINE_BYTES", 2000)
        patch.setattr("backfill.packing.FILE_BYTES", 3000)
        patch.setattr("backfill.handoff.read_ahead", without_a_thread)
        yield


def without_a_thread(items: Iterator[T]) -> Iterator[T]:
    return items
