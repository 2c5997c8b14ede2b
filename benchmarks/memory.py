"""How large the driver's Python process gets while a stream drains what has piled up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import psutil

from benchmarks.bed import ACCOUNTS, Bed
from benchmarks.changes import Rewindable, change
from benchmarks.report import Table
from benchmarks.rounds import Rounds

ROWS = 5_000_000
LARGE_TRANSACTION = 2_000_000
TENTH = 10
ACCOUNTS_BEFORE = 100_000
SIZE = 10_000
MOST = 1 << 30

INTERVAL = 0.02
"""Seconds between two looks at the process."""

RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"


@dataclass
class Watch:
    """The largest resident size seen of the process in which Spark runs the driver's part of the source."""

    peak: int = 0
    _done: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        runner: psutil.Process | None = None
        while not self._done.wait(INTERVAL):
            with suppress(psutil.Error):
                runner = runner if runner is not None and runner.is_running() else _runner()
                if runner is not None:
                    self.peak = max(self.peak, runner.memory_info().rss)

    def end(self) -> None:
        self._done.set()


def _runner() -> psutil.Process | None:
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if RUNNER in process.cmdline():
                return process
    return None


@contextmanager
def watching() -> Iterator[Watch]:
    watch = Watch()
    thread = threading.Thread(target=watch.watch, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        watch.end()
        thread.join()


def run(bed: Bed, rows: int | None, _rounds: Rounds) -> Iterator[Table]:
    count = max(SIZE * TENTH, rows or ROWS)
    large = count * LARGE_TRANSACTION // ROWS

    def backlog(of: int) -> Callable[[], None]:
        return lambda: change(bed, transactions=of // SIZE, size=SIZE, rows=ACCOUNTS_BEFORE)

    def transaction(of: int) -> Callable[[], None]:
        return lambda: _insert(bed, of)

    cases: dict[str, tuple[int, Callable[[], None]]] = {
        "nothing waits": (0, lambda: None),
        f"{count // TENTH} changes wait": (count // TENTH, backlog(count // TENTH)),
        f"{count} changes wait": (count, backlog(count)),
        f"one transaction of {large // TENTH} rows": (large // TENTH, transaction(large // TENTH)),
        f"one transaction of {large} rows": (large, transaction(large)),
    }
    found = {name: _peak(bed, expected, pile_up) for name, (expected, pile_up) in cases.items()}
    yield Table(
        "Memory of the driver's Python process",
        ("while", "peak MB", "bounded"),
        [(name, f"{peak / 1e6:.0f}", "yes" if peak < MOST else "no") for name, peak in found.items()],
        [f"Peak resident size, seen every {INTERVAL * 1000:.0f} ms; maxRowsPerTrigger at its default."],
        {"peak_bytes": found},
    )


def _peak(bed: Bed, expected: int, pile_up: Callable[[], None]) -> int:
    bed.fill(ACCOUNTS_BEFORE)
    stream = Rewindable.backfilled(bed)
    pile_up()
    with watching() as watch:
        found = stream.drain()
    stream.drop()
    if found.rows != expected:
        raise AssertionError(f"{found.rows} changes were read and {expected} were made")
    return watch.peak


def _insert(bed: Bed, rows: int) -> None:
    bed.database.execute(
        f"INSERT INTO {ACCOUNTS} SELECT {ACCOUNTS_BEFORE} + i, 1, 0, repeat('x', 84) "
        f"FROM generate_series(1, {rows}) AS i"
    )
