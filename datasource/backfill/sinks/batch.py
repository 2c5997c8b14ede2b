"""A micro-batch, without Spark."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa


class Batch(Protocol):
    """What is needed of Spark's DataFrame."""

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        ...
