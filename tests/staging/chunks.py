"""A small chunk, and the name that it has where it is staged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

SCHEMA = pa.schema([pa.field("n", pa.int64())])
NAME = "chunk-0-1.arrow"


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64())], schema=SCHEMA)


BATCHES = [batch(1, 2), batch(3), batch(4, 5, 6)]


def numbers(batches: Iterator[pa.RecordBatch]) -> list[Any]:
    return [number for item in batches for number in item["n"].to_pylist()]
