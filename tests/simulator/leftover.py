"""Tasks that outlive their driver."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import pyarrow as pa

from backfill.errors import SnapshotGoneError, StagingError, StateBusyError
from backfill.handoff import Part, SnapshotPart
from tests.simulator.harness import Spark
from tests.simulator.sink import Output, output_rows

Task = Iterator[pa.RecordBatch]


@dataclass(slots=True)
class Leftover:
    """Tasks of drivers that are gone; the tasks do not know it."""

    tasks: list[Task] = field(default_factory=list)
    passed_on: set[Output] = field(default_factory=set)
    """Snapshot rows of the tasks that have come to their ends. The sink of a driver that is gone may have them."""

    def begin(self, random: Random, spark: Spark) -> None:
        """Starts the tasks of this driver, some of them twice, and lets them take turns for a while."""
        tasks = [self._task(spark, part) for part in spark.parts() for _ in range(random.choice([1, 1, 2]))]
        for _ in range(random.randrange(3 * len(tasks) + 1)):
            next(random.choice(tasks), None)
            spark.watched.pass_time()
        self.tasks += tasks

    def _task(self, spark: Spark, part: Part) -> Task:
        batches, schema = list[pa.RecordBatch](), spark.stream().rows.schema
        for batch in spark.task(part):
            batches.append(batch)
            yield batch
        if isinstance(part, SnapshotPart):
            self.passed_on.update(output_rows(batches, schema))

    def go_on(self, random: Random) -> None:
        """Lets some of the tasks come to their ends, late, while their driver is gone."""
        while self.tasks and random.random() < 0.3:
            task = self.tasks.pop(random.randrange(len(self.tasks)))
            with suppress(SnapshotGoneError, StateBusyError, StagingError, OSError):
                deque(task, maxlen=0)
