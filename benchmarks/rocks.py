"""RocksDB beside the upsert state: the store in which Materialize keeps its own.

It is used in its fastest way from Python: keys and rows are bytes before the clock starts, rows come back as bytes and
nothing reads them, no row has an order, and no batch is made durable. Its block cache is as large as DuckDB's memory,
and it has a filter of ten bits for each key; what it reads beyond that comes from its files as well.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from benchmarks.rounds import Run, clocks

ROCKSDB: Final = "RocksDB"
LEFT_OUT: Final = f"{ROCKSDB} is left out: run pip install rocksdict."

_FILL: Final = 500_000

Keys: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]


def installed() -> bool:
    return find_spec("rocksdict") is not None


class Rocks:
    """A database of `size` keys, each with a row of `row` bytes."""

    def __init__(self, path: Path, size: int, row: int, memory: int) -> None:
        self._rocksdict: Any = import_module("rocksdict")
        blocks = self._rocksdict.BlockBasedOptions()
        blocks.set_block_cache(self._rocksdict.Cache(memory))
        blocks.set_bloom_filter(10, False)
        options = self._rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.increase_parallelism(2)
        options.set_block_based_table_factory(blocks)
        self._row = row
        self._db = self._rocksdict.Rdict(str(path), options)
        for begin in range(0, size, _FILL):
            keys = np.arange(begin, min(size, begin + _FILL))
            self._write(_pieces(keys), self._rows(len(keys), np.random.default_rng(begin)))
        self._db.flush()

    def batch(self, wanted: Keys, random: np.random.Generator, parts: tuple[str, ...]) -> Run:
        """Looks these keys up, then writes them."""
        count = len(wanted)
        keys, rows = _pieces(wanted), self._rows(count, random)
        began = clocks()
        found = self._db.get(keys)
        got = clocks()
        self._write(keys, rows)
        ended = clocks()
        if any(row is None or len(row) != self._row for row in found):
            raise AssertionError("RocksDB did not find what was written")
        return Run(count, float((ended - began)[0]), dict(zip(parts, [*(got - began), *(ended - got)], strict=True)))

    def close(self) -> None:
        self._db.close()

    def _rows(self, count: int, random: np.random.Generator) -> list[bytes]:
        letters = random.integers(97, 123, count * self._row, np.uint8).tobytes()
        return [letters[at : at + self._row] for at in range(0, len(letters), self._row)]

    def _write(self, keys: list[bytes], rows: list[bytes]) -> None:
        batch = self._rocksdict.WriteBatch(raw_mode=True)
        for key, row in zip(keys, rows, strict=True):
            batch.put(key, row)
        self._db.write(batch)


def _pieces(keys: Keys) -> list[bytes]:
    every = keys.astype(">i8").tobytes()
    return [every[at : at + 8] for at in range(0, len(every), 8)]
