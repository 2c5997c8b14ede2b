"""What a batch costs in an upsert state: keys looked up and written a second, by how many the state holds.

Rows are like pgbench's accounts, with a filler that hardly compresses. A batch asks for the entries of its keys, then
writes new ones. Its keys lie anywhere in the state, or among the newest: as with a table whose recent rows are those
that change. DuckDB has `MEMORY` for each state; what it reads beyond that comes from the file, which the system may
still have in its own memory. `--rows 50000000` measures 1, 10 and 50 million keys; it takes 5 GB of disk, and as much
again with RocksDB beside it.

Then the same for few rows that are long, as those of tables with documents or vectors in them; and for rows that are
written again and again, beside others that were written once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from backfill_state.upsert import DuckDBUpsertState, Updates, UpsertLayout
from benchmarks.bed import Bed
from benchmarks.report import Comparison, Table, ratios, speeds, where
from benchmarks.rocks import LEFT_OUT, ROCKSDB, Keys, Rocks, installed
from benchmarks.rounds import Rounds, Run, clocks, take_turns

ROWS = 10_000_000
PARTS_OF_ROWS = (50, 5, 1)
"""The sizes of the states: that of the largest, divided by each of these."""

BATCH = 100_000
NEWEST = 4 * BATCH
FILL = 500_000
FILL_BYTES = 64 << 20
LONG_ROWS = 50_000
LONG_BATCH = 1_000
HOT_ROWS = 20_000
HOT_BEFORE = 200
"""How often the rows that are written again and again were written before: four million rows in all."""

MEMORY_BYTES = 512_000_000
MEMORY = f"{MEMORY_BYTES // 1_000_000}MB"
ROW_BYTES = 100
"""About how many bytes a row with `FILLER` has."""

PARTS = ("get", "get: processor", "put", "put: processor")
AT_LEAST = 0.5

AID = pa.field("aid", pa.int64())
NUMBERS: list[pa.Field[Any]] = [pa.field("bid", pa.int32()), pa.field("abalance", pa.int32())]


@dataclass(frozen=True, slots=True)
class Filler:
    """What makes a row long: a text of so many bytes, or a list of numbers of 8 bytes."""

    size: int
    numbers: bool = False

    @property
    def layout(self) -> UpsertLayout:
        kind = pa.list_(pa.float64()) if self.numbers else pa.string()
        return UpsertLayout("benchmark", pa.schema([AID]), pa.schema([AID, *NUMBERS, pa.field("filler", kind)]))

    @property
    def name(self) -> str:
        return f"{'lists' if self.numbers else 'texts'} of {self.size:,} bytes"

    def drawn(self, random: np.random.Generator, count: int) -> pa.Array[Any]:
        """So many fillers, which hardly compress."""
        each = self.size // 8 if self.numbers else self.size
        ends = np.arange(0, count * each + 1, each).astype(np.int32)
        if self.numbers:
            values = pa.array(random.random(count * each), pa.float64())
            return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values)
        letters = random.integers(97, 123, count * each, np.uint8)
        return pa.StringArray.from_buffers(count, pa.py_buffer(ends.tobytes()), pa.py_buffer(letters.tobytes()))


FILLER: Final = Filler(84)
LONG_FILLERS: Final = (FILLER, Filler(2_000), Filler(20_000), Filler(20_000, numbers=True))


def run(bed: Bed, rows: int | None, rounds: Rounds) -> Iterator[Table]:
    sizes = sorted({max(NEWEST, (rows or ROWS) // part) for part in PARTS_OF_ROWS})
    folder = bed.fresh_folder()
    with ExitStack() as stack:
        states = [stack.enter_context(_filled(folder / f"{size}.duckdb", size)) for size in sizes]
        contenders: dict[str, Callable[[], Run]] = {}
        orders = itertools.count(1)
        for size, state in zip(sizes, states, strict=True):
            contenders[_anywhere(size)] = partial(_batch, state, orders, range(size))
            contenders[_newest(size)] = partial(_batch, state, orders, range(size - NEWEST, size))
            if installed():
                rocks = stack.enter_context(closing(Rocks(folder / f"{size}.rocks", size, ROW_BYTES, MEMORY_BYTES)))
                contenders[_rocks(size)] = partial(_rocks_batch, rocks, orders, range(size))
        results = take_turns(contenders, rounds)
        files = [f"{state.file_bytes() / 1e6:.0f} MB for {size:,}" for size, state in zip(sizes, states, strict=True)]
    notes = [f"Batches of {BATCH:,} keys, {MEMORY} of memory; on disk {', '.join(files)} keys."]
    notes += [] if installed() else [LEFT_OUT]
    yield speeds("Upsert state: speed of a batch", results, notes, unit="keys")
    yield where("Upsert state: where the time goes", results, PARTS)
    smallest, *larger = sizes
    newest = [Comparison(_newest(size), _newest(smallest), AT_LEAST) for size in larger]
    anywhere = [Comparison(_anywhere(size), _anywhere(smallest)) for size in larger]
    beside = [Comparison(_anywhere(size), _rocks(size)) for size in sizes if installed()]
    yield ratios("Upsert state: ratio", results, [*newest, *anywhere, *beside])
    yield from _long_rows(folder, rounds)
    yield from _hot_rows(folder, rounds)


def _long_rows(folder: Path, rounds: Rounds) -> Iterator[Table]:
    orders = itertools.count(1)
    with ExitStack() as stack:
        contenders: dict[str, Callable[[], Run]] = {}
        for filler in LONG_FILLERS:
            state = stack.enter_context(_filled(folder / f"{filler.name}.duckdb", LONG_ROWS, filler))
            contenders[filler.name] = partial(_batch, state, orders, range(LONG_ROWS), LONG_BATCH, filler)
        results = take_turns(contenders, rounds)
    notes = [f"Batches of {LONG_BATCH:,} keys from all over {LONG_ROWS:,} rows, {MEMORY} of memory."]
    yield speeds("Upsert state: long rows", results, notes, unit="keys")
    yield where("Upsert state: long rows, where the time goes", results, PARTS)


def _hot_rows(folder: Path, rounds: Rounds) -> Iterator[Table]:
    orders = itertools.count(1)
    once, often = (f"{HOT_ROWS:,} keys, written {times} before" for times in ("once", f"{HOT_BEFORE} times"))
    with ExitStack() as stack:
        states = {
            name: stack.enter_context(_filled(folder / f"hot-{number}.duckdb", HOT_ROWS))
            for number, name in enumerate((once, often))
        }
        for _ in range(HOT_BEFORE):
            _batch(states[often], orders, range(HOT_ROWS), HOT_ROWS)
        results = take_turns(
            {name: partial(_batch, state, orders, range(HOT_ROWS), HOT_ROWS) for name, state in states.items()}, rounds
        )
        file = states[often].file_bytes()
    notes = [f"Batches of all {HOT_ROWS:,} keys of a state; the file of the second is {file / 1e6:.0f} MB."]
    yield speeds("Upsert state: the same rows again and again", results, notes, unit="keys")
    yield ratios("Upsert state: the same rows, ratio", results, [Comparison(often, once, AT_LEAST)])


def _anywhere(size: int) -> str:
    return f"{size:,} keys, anywhere"


def _newest(size: int) -> str:
    return f"{size:,} keys, the newest"


def _rocks(size: int) -> str:
    return f"{size:,} keys, anywhere, {ROCKSDB}"


def _filled(path: Path, size: int, filler: Filler = FILLER) -> DuckDBUpsertState:
    state = DuckDBUpsertState(path, filler.layout, memory_limit=MEMORY)
    random = np.random.default_rng(size)
    step = min(FILL, FILL_BYTES // filler.size)
    for begin in range(0, size, step):
        with state.batch(f"fill-{begin}"):
            state.multi_put(_updates(np.arange(begin, min(size, begin + step)), 0, random, filler))
    return state


def _batch(
    state: DuckDBUpsertState, orders: Iterator[int], among: range, count: int = BATCH, filler: Filler = FILLER
) -> Run:
    order = next(orders)
    random = np.random.default_rng(order)
    updates = _updates(_drawn(random, among, count), order, random, filler)
    began = clocks()
    with state.batch(f"batch-{order}"):
        found = state.multi_get(updates.keys)
        got = clocks()
        put = state.multi_put(updates)
    ended = clocks()
    if found.stats.found != len(updates.keys) or put.updates != found.stats.found:
        raise AssertionError(f"{found.stats.found} of {count} keys were found and {put.updates} updated")
    parts = dict(zip(PARTS, [*(got - began), *(ended - got)], strict=True))
    return Run(count, float((ended - began)[0]), parts)


def _rocks_batch(rocks: Rocks, orders: Iterator[int], among: range) -> Run:
    random = np.random.default_rng(next(orders))
    return rocks.batch(_drawn(random, among, BATCH), random, PARTS)


def _drawn(random: np.random.Generator, among: range, count: int) -> Keys:
    """So many different keys, in no order."""
    if count == len(among):
        return random.permutation(np.arange(among.start, among.stop))
    keys = np.unique(random.integers(among.start, among.stop, count * 2))
    return random.permutation(keys)[:count]


def _updates(keys: Keys, order: int, random: np.random.Generator, filler: Filler) -> Updates:
    count = len(keys)
    orders = np.full(count, order, np.int64)
    heads = {"order_key": orders, "order_tie": orders, "present": np.ones(count, np.bool_)}
    numbers = {"bid": (keys // 100_000).astype(np.int32), "abalance": orders.astype(np.int32)}
    rows = pa.table({"aid": keys, **numbers, "filler": filler.drawn(random, count)})
    return Updates(pa.table({"aid": keys}), pa.table(heads), rows)
