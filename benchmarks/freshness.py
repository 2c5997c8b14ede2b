"""How long after its commit a change is in a sink: a function of foreachBatch that fetches the batch's rows.

Writer, server and Spark are on one machine, so that one clock tells when a row was written and when it was there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from benchmarks.report import Table, between
from benchmarks.rounds import Rounds, Spread
from integration.waiting import eventually

if TYPE_CHECKING:
    from psycopg import Connection
    from pyspark.sql import DataFrame

    from benchmarks.bed import Bed

PACES: Final = {"one in two seconds": (2.0, 10), "10 a second": (0.1, 200), "100 a second": (0.01, 1000)}
"""The pause after each transaction of one row, in seconds, and how many there are in a round."""

_MAKE: Final = "DROP TABLE IF EXISTS fresh; CREATE TABLE fresh (id bigint PRIMARY KEY, written float8)"
_WRITE: Final = "INSERT INTO fresh VALUES (%s, %s)"


@dataclass
class Sink:
    """Notes for each row how many seconds after its writing it was there."""

    ages: list[float] = field(default_factory=list)

    def __call__(self, batch: DataFrame, number: int) -> None:
        del number
        written = batch.select("written").toArrow()["written"]
        self.ages += (time.time() - written.to_numpy()).tolist()


def run(bed: Bed, rows: int | None, rounds: Rounds) -> Iterator[Table]:
    """`rows` has no meaning here: each pace has a number of its own."""
    del rows
    bed.database.execute(_MAKE)
    sink = Sink()
    options = {**bed.database.options, "dbtable": "fresh", "stateDir": str(bed.fresh_folder())}
    frame = bed.spark.readStream.format("backfill").options(**options).load()
    query = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(bed.fresh_folder())).start()
    found: dict[str, list[float]] = {pace: [] for pace in PACES}
    first = 0
    with bed.database.connect(autocommit=True) as writer:
        _write(writer, sink, first, 0.1, 50)  # until Spark is warm
        for _ in range(rounds.count):
            for pace, (pause, count) in PACES.items():
                first += 1000
                found[pace] += _write(writer, sink, first, pause, count)
    query.stop()
    spreads = {pace: Spread.of(ages) for pace, ages in found.items()}
    yield Table(
        "Freshness: seconds from a commit to the sink",
        ("transactions of one row", "seconds", "range"),
        [(pace, f"{spread.median:.2f}", between(spread, 1, 2)) for pace, spread in spreads.items()],
        values={pace: asdict(spread) for pace, spread in spreads.items()},
    )


def _write(writer: Connection[Any], sink: Sink, first: int, pause: float, count: int) -> list[float]:
    """Writes so many rows. Returns how many seconds each took to the sink, once all are there."""
    sink.ages.clear()
    for number in range(first, first + count):
        time.sleep(pause)
        writer.execute(_WRITE, [number, time.time()])
    eventually(lambda: len(sink.ages) == count)
    return list(sink.ages)
