"""REPACK (CONCURRENTLY): other files take the place of a table's while everybody goes on reading and writing it.

An older snapshot sees nothing in them, as after a TRUNCATE; and the log has none of what it copies.
"""

from __future__ import annotations

import random
from contextlib import suppress
from functools import partial

import psycopg
import pytest

from backfill.errors import StagingError, TransientError
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.versions import require_version
from integration.writers import BIGINT, COMPOSITE, TABLE, InThreads, Shape, Writers

SIZE = 1000
REPACKED = 10
ENOUGH = 100_000
"""Changes that one batch may take."""


class Repacking(InThreads):
    """Somebody who repacks the table again and again; `done` times so far."""

    def __init__(self, database: Database, rng: random.Random) -> None:
        self.done = 0
        super().__init__([partial(self._repack, database, random.Random(rng.getrandbits(64)))])

    def _repack(self, database: Database, rng: random.Random) -> None:
        with database.connect(autocommit=True) as client:
            while not self.stopped.wait(rng.random() / 2):
                with suppress(psycopg.errors.DeadlockDetected):
                    client.execute(f"REPACK (CONCURRENTLY) {TABLE}".encode())
                    self.done += 1


@pytest.mark.parametrize(
    ("shape", "changelog"),
    [(BIGINT, "logged"), (COMPOSITE, "logged"), (COMPOSITE, "full")],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_table_that_is_repacked_again_and_again_is_read_and_followed(
    database: Database, start_stream: StartStream, shape: Shape, changelog: str, rng: random.Random
) -> None:
    """Where it happens while a batch is read, the query ends, and is started again."""
    require_version(database, 190_000, "REPACK (CONCURRENTLY)")
    shape.create(database, SIZE, identity="DEFAULT")
    run = start_stream(TABLE, key=shape.sink_key, select=shape.select, changelog=changelog, maxBytesPerTrigger="3000")
    run.restart(vnodeCount="7", numPartitions="3")
    with Writers(database, shape, SIZE, rng, clients=2), Repacking(database, rng) as repacking:
        while not run.committed or not run.backfilled or repacking.done < REPACKED:
            try:
                run.judged_batch(ENOUGH)
            except (StagingError, TransientError):
                run.restart()
    assert run.judged > 0
    run.finish()
