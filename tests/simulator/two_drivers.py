"""Two drivers of one query at once, each with a stateDir of its own, so that no lock keeps them apart.

They share the checkpoint, stagingDir, the database and the sink. Spark lets each batch be logged and committed once,
and the sink takes each once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import pyarrow as pa

from backfill.errors import BackfillError
from backfill.offset import to_text
from tests.simulator.database import Database
from tests.simulator.harness import Spark
from tests.simulator.sink import Output, Sink, output_rows
from tests.simulator.writer import reveal, write


class OvertakenError(Exception):
    """The other driver was faster."""


@dataclass(slots=True)
class Shared:
    """What the drivers share: the checkpoint, and the sink with the number of the batch that it has."""

    offsets: list[str] = field(default_factory=list)
    committed: int = 0
    applied: int = 0
    sink: Sink = field(default_factory=Sink)

    def log(self, number: int, end: str) -> None:
        _require(len(self.offsets) == number - 1)
        self.offsets.append(end)

    def apply(self, number: int, rows: list[Output]) -> None:
        _require(self.applied in (number - 1, number))
        if self.applied < number:
            self.sink.apply(rows)
        self.applied = number

    def commit(self, number: int) -> None:
        _require(self.committed == number - 1)
        self.committed = number


def _require(first: bool) -> None:
    if not first:
        raise OvertakenError


def driver(shared: Shared, spark: Spark, random: Random) -> Iterator[None]:
    """Runs a driver from its start on; yields wherever the other driver may go on."""
    spark.offsets, spark.committed = list(shared.offsets), shared.committed
    while True:
        yield
        begin, number, stream = spark.offset(spark.committed), spark.committed + 1, spark.stream()
        if len(spark.offsets) < number:
            end = to_text(stream.latest_offset(begin, random.choice([1, 3, 6, None])))
            yield
            if end == to_text(begin):
                continue
            shared.log(number, end)
            spark.offsets.append(end)
            yield
        rows = list[Output]()
        for part in spark.parts():
            batches = list[pa.RecordBatch]()
            for batch in spark.task(part):
                yield
                batches.append(batch)
            rows += output_rows(batches, stream.rows.schema)
        spark.watched.pass_time()
        yield
        shared.apply(number, rows)
        yield
        shared.commit(number)
        spark.committed = number


def goes_on(turns: Iterator[None]) -> bool:
    """Gives a driver its next turn, and returns whether it goes on; raises the StagingError where none ever can."""
    try:
        next(turns)
    except OvertakenError:
        return False
    except BackfillError as error:
        if "holds another plan" in str(error):
            raise
        return False
    except AssertionError as error:
        if "have been acknowledged" not in str(error):  # A real server raises an error here.
            raise
        return False
    return True


def stir(random: Random, database: Database) -> None:
    if random.random() < 0.2:
        write(random, database)
    if random.random() < 0.2:
        reveal(random, database)
