"""How often a stream waits for its database, and for how long where that is far away. Spark has no part in it.

Batches are small, so that the distance counts and not the work. What Spark does in processes of their own is done in
new ones here too, since a process keeps what it has learned of a database.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pyarrow as pa
from psycopg.conninfo import conninfo_to_dict

from backfill import handoff
from backfill.adapters import open_upstream
from backfill.opening import open_stream
from backfill.options import parse
from backfill.sinks.postgres import apply_to
from benchmarks.report import Table, between
from benchmarks.rounds import Rounds, Spread
from integration.crash.proxy import Proxy
from integration.servers.address import as_uri
from tests.collected import Rows
from tests.query import Query

if TYPE_CHECKING:
    import socket

    from backfill.stream import Stream
    from benchmarks.bed import Bed

DISTANCES: Final = (0.02, 0.08)
"""Seconds that a message takes there and back."""

ROWS: Final = 4000
BATCHES: Final = 4

LOAD: Final = "load()"
BEGIN: Final = "beginning: the first batch's plan"
AGAIN: Final = "going on after a restart"
PLAN: Final = "planning a batch that reads rows"
FIRST: Final = "its reader, the first time"
READ: Final = "its reader"
CHANGES: Final = "a batch of changes, and letting go of the one before"
IDLE: Final = "looking whether there is anything new"
SINK: Final = "a batch into a keyed table"

_MAKE: Final = f"""
    DROP TABLE IF EXISTS far, far_copy, backfill_batches;
    CREATE TABLE far (id bigint PRIMARY KEY, v text);
    INSERT INTO far SELECT i, 'v' || i FROM generate_series(1, {ROWS}) i;
    ANALYZE far;
    CREATE TABLE far_copy (LIKE far INCLUDING ALL)"""
_DROP: Final = """
    SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()"""


class Way(Proxy):
    """Passes on all that is said, in its order, but later: by so many `seconds` for there and back."""

    def __init__(self, dsn: str, seconds: float) -> None:
        given = conninfo_to_dict(dsn)
        self._late = seconds / 2
        self._under_way: dict[socket.socket, SimpleQueue[tuple[float, bytes] | None]] = {}
        super().__init__(str(given["host"]), int(str(given["port"])))
        self.url = as_uri(dsn, host="127.0.0.1", port=str(self.port))

    def _forward(self, target: socket.socket, data: bytes) -> None:
        if target not in self._under_way:
            self._under_way[target] = SimpleQueue()
            self._start(lambda: self._arrive(target), "way")
        self._under_way[target].put((time.monotonic() + self._late, data))

    def _arrive(self, target: socket.socket) -> None:
        while (arriving := self._under_way[target].get()) is not None:
            at, data = arriving
            time.sleep(max(0.0, at - time.monotonic()))
            with suppress(OSError):
                target.sendall(data)

    def close(self) -> None:
        for under_way in self._under_way.values():
            under_way.put(None)
        super().close()


@dataclass(frozen=True, slots=True)
class Took:
    """How often an operation waited for the database, and how many seconds it took in all."""

    trips: int
    seconds: float


@dataclass
class FarQuery(Query[pa.RecordBatch]):
    """One life of a query's driver, with its tasks."""

    options: Mapping[str, str]
    offsets: list[str] = field(default_factory=list)
    committed: int = 0
    _stream: Stream | None = None

    def stream(self) -> Stream:
        if self._stream is None:
            self._stream = open_stream(parse(self.options, streaming=True))
        return self._stream

    def read(self) -> list[pa.RecordBatch]:
        stream = self.stream()
        return [rows for part in self.parts() for rows in handoff.read(part, stream.reader(), stream.rows)]

    def commit(self, rows: Sequence[pa.RecordBatch]) -> None:  # noqa: ARG002 - nobody keeps them
        self.committed += 1

    def close(self) -> None:
        self.stream().close()


@dataclass(frozen=True)
class Life:
    """A process that is far from the database, and what its operations took."""

    way: Way
    dsn: str
    options: Mapping[str, str]
    took: dict[str, Took] = field(default_factory=dict)

    def take(self, name: str, operation: Callable[[], Any]) -> Any:
        trips, began = self.way.requests, time.perf_counter()
        result = operation()
        self.took[name] = Took(self.way.requests - trips, time.perf_counter() - began)
        return result

    def change(self, number: int) -> None:
        """Updates some rows, from near the database."""
        with psycopg.connect(self.dsn, autocommit=True) as writer:
            writer.execute("UPDATE far SET v = 'new ' || %s::int WHERE id %% 10 = %s::int", [number, number])


def run(bed: Bed, rows: int | None, rounds: Rounds) -> Iterator[Table]:
    """`rows` has no meaning here: there are always a few."""
    del rows
    found = {seconds: [_all(bed, seconds) for _ in range(rounds.count)] for seconds in DISTANCES}
    header = ("", "round trips", *(f"{seconds * 1000:.0f} ms" for seconds in DISTANCES))
    lines, values = [], []
    for name in found[DISTANCES[0]][0]:
        trips = statistics.median_low([took[name].trips for each in found.values() for took in each])
        spreads = {seconds: Spread.of([took[name].seconds for took in each]) for seconds, each in found.items()}
        times = [f"{spread.median:.2f} s ({between(spread, 1, 2)})" for spread in spreads.values()]
        lines.append((name, str(trips), *times))
        values.append({"name": name, "trips": trips, "seconds": {at: spread.median for at, spread in spreads.items()}})
    yield Table("Distance: how often the database is waited for", header, lines, values={"operations": values})


def _all(bed: Bed, seconds: float) -> dict[str, Took]:
    """Measures all operations, in the order of a query's life."""
    bed.database.execute(_MAKE)
    options = {"dbtable": "far", "stateDir": str(bed.fresh_folder()), "numPartitions": "1"}
    far = (bed.database.dsn, seconds, options)
    took, _ = _in_new_process(_load, *far)
    lived, offsets = _in_new_process(_live, *far)
    again, _ = _in_new_process(_live_again, *far, offsets)
    bed.database.execute(_DROP)
    return {**took, **lived, **again}


def _in_new_process(function: Callable[..., Any], *given: Any) -> tuple[dict[str, Took], list[str]]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        took, offsets = process.submit(function, *given).result()
    return took, offsets


@contextmanager
def _life(dsn: str, seconds: float, options: Mapping[str, str]) -> Iterator[Life]:
    with Way(dsn, seconds) as way:
        yield Life(way, dsn, {**options, "url": way.url})


def _load(*far: Any) -> tuple[dict[str, Took], list[str]]:
    def load() -> None:
        with closing(open_upstream(parse(life.options))) as upstream:
            upstream.schema()

    with _life(*far) as life:
        life.take(LOAD, load)
        return life.took, []


def _live(*far: Any) -> tuple[dict[str, Took], list[str]]:
    """Runs the backfill, then reads some changes."""
    with _life(*far) as life, closing(FarQuery(life.options)) as query:
        life.take(BEGIN, lambda: query.plan(ROWS // BATCHES))
        query.commit(life.take(FIRST, query.read))
        for number in range(1, BATCHES):
            life.change(number)
            life.take(PLAN, lambda: query.plan(ROWS // BATCHES))
            query.commit(life.take(READ, query.read))
        query.catch_up()
        for number in range(BATCHES):
            life.change(number)
            life.take(CHANGES, query.batch)
        query.catch_up()
        life.take(IDLE, query.plan)
        return life.took, query.offsets


def _live_again(*given: Any) -> tuple[dict[str, Took], list[str]]:
    """Reads changes that came while the query was stopped, into a table that is as far away."""
    *far, offsets = given
    with _life(*far) as life, closing(FarQuery(life.options, offsets, len(offsets))) as query:
        life.change(1)
        life.take(AGAIN, query.plan)
        apply = apply_to(url=life.way.url, table="far_copy", key=["id"], query="far")
        for number in range(BATCHES):
            rows = Rows(pa.Table.from_batches(query.read(), query.stream().rows.schema))
            life.take(SINK, partial(apply, rows, number))
            query.commit([])
            life.change(number + 2)
            query.plan()
        return life.took, query.offsets
