"""Sizes at which a table of 90 rows has several readers, and its changes several staged files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def small_sizes() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("backfill.batch.MIN_SPLIT_ROWS", 3)
        patch.setattr("backfill.handoff.INLINE_BYTES", 2000)
        patch.setattr("backfill.handoff.FILE_BYTES", 3000)
        yield
