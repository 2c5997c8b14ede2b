"""At every barrier the sink is the part of the table that was emitted, exactly as of the epoch, whatever is written.

The judge is PostgreSQL: while a batch is read, its epoch is a snapshot that any session can look at.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable

import psycopg
import pytest

from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.servers import LocalServer
from integration.stream_harness import StreamRun
from integration.writers import BIGINT, COMPOSITE, HIDDEN, NUMERIC, TABLE, UUID, Client, Shape, Writers, total

SIZE = 1000
BARRIERS = 20
FEW_BYTES = "2000"
"""What one batch may read of the snapshot: about 15 rows, so that there are enough barriers even where writers, given
time, have deleted a third of the table before it is read."""

ENOUGH = 100_000
"""Changes that one batch may take: never so few that a batch has nothing but changes, unless that is wanted."""


def opened(run: StreamRun, shape: Shape) -> int:
    """Runs the first batch, while nothing holds up the making of the slot; returns the sum of all balances."""
    run.select = shape.select
    run.judged_batch(ENOUGH)
    ((constant,),) = run.database.execute(f"SELECT sum(balance)::bigint FROM {TABLE}")
    return int(constant)


def budget(rng: random.Random) -> int:
    return 20 if rng.random() < 0.1 else ENOUGH


@pytest.mark.parametrize(
    ("shape", "identity", "changelog"),
    [
        (BIGINT, "DEFAULT", "logged"),
        (BIGINT, "FULL", "logged"),
        (BIGINT, "DEFAULT", "full"),
        (COMPOSITE, "DEFAULT", "logged"),
        (COMPOSITE, "FULL", "logged"),
        (COMPOSITE, "DEFAULT", "full"),
        (UUID, "DEFAULT", "logged"),
        (NUMERIC, "FULL", "logged"),
        (HIDDEN, "FULL", "full"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_the_sink_is_the_emitted_part_of_the_table_at_every_barrier(
    database: Database,
    start_stream: StartStream,
    shape: Shape,
    identity: str,
    changelog: str,
    rng: random.Random,
) -> None:
    shape.create(database, SIZE, identity=identity)
    run = start_stream(TABLE, key=shape.sink_key, maxBytesPerTrigger=FEW_BYTES, changelog=changelog, **shape.options)
    run.restart(vnodeCount="7", numPartitions="3")
    constant = opened(run, shape)
    slow = [Client(database, shape, SIZE, rng) for _ in range(2)]
    followed = 0
    with Writers(database, shape, SIZE, rng, clients=3):
        for client in slow:
            client.begin()
        while followed < 8:
            for client in slow:
                client.write()
                if rng.random() < 0.25:
                    client.end()
                    client.begin()
            run.judged_batch(budget(rng))
            if run.backfilled:
                followed += 1
                assert total(run.fold.rows) == constant
    for client in slow:
        client.end()
        client.close()
    assert run.judged >= BARRIERS
    run.finish()


class HangingCommits:
    """Transactions whose commit record is in the log and whose commit is not visible: they wait for a standby."""

    def __init__(self, database: Database, shape: Shape, rng: random.Random) -> None:
        self._database, self._shape, self._rng = database, shape, rng
        self._threads: list[tuple[Client, threading.Thread]] = []

    def begin(self) -> None:
        """From now on commits wait for a standby that does not exist."""
        self._set("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        while not self._threads:
            self.add()  # the first ones may still come through

    def add(self) -> None:
        """Begins one more commit; returns when it waits, or has come through."""
        client = Client(self._database, self._shape, SIZE, self._rng)
        thread = threading.Thread(target=self._commit, args=(client,), daemon=True)
        thread.start()
        while thread.is_alive():
            if self._waits(client):
                self._threads.append((client, thread))
                return
            time.sleep(0.005)
        client.close()

    @staticmethod
    def _commit(client: Client) -> None:
        with contextlib.suppress(psycopg.OperationalError):  # after a failure the server goes first
            client.commit_something()

    def _waits(self, client: Client) -> bool:
        query = "SELECT pid FROM pg_stat_activity WHERE pid = %s AND wait_event = 'SyncRep'"
        return bool(self._database.execute(query, [client.pid]))

    def __len__(self) -> int:
        return len(self._threads)

    def show_one(self) -> None:
        """Lets one of them become visible, not necessarily the first in the log."""
        client, thread = self._threads.pop(self._rng.randrange(len(self._threads)))
        self._database.execute("SELECT pg_cancel_backend(%s)", [client.pid])
        thread.join()
        client.close()

    def end(self) -> None:
        """Lets all of them become visible; later commits do not wait."""
        self._set("ALTER SYSTEM RESET synchronous_standby_names")
        for client, thread in self._threads:
            thread.join()
            client.close()

    def _set(self, statement: str) -> None:
        self._database.execute(statement)
        self._database.execute("SELECT pg_reload_conf()")


def test_a_commit_that_hangs_belongs_to_the_epoch_that_first_shows_it(
    start_postgres: Callable[[], LocalServer], start_stream: StartStream, rng: random.Random
) -> None:
    database = Database(start_postgres(), "postgres")
    BIGINT.create(database, SIZE, identity="DEFAULT")
    run = start_stream(TABLE, database=database, maxBytesPerTrigger=FEW_BYTES, vnodeCount="7")
    constant = opened(run, BIGINT)
    hanging = HangingCommits(database, BIGINT, rng)
    hanging.begin()
    followed = 0
    with Writers(database, BIGINT, SIZE, rng, clients=2, wait="local"):
        while followed < 8:
            if len(hanging) < 2 or (len(hanging) < 6 and rng.random() < 0.4):
                hanging.add()
            elif rng.random() < 0.4:
                hanging.show_one()
            if rng.random() < 0.1:
                run.restart()
            run.judged_batch(budget(rng))
            if run.backfilled:
                followed += 1
                assert total(run.fold.rows) == constant
    assert run.judged >= BARRIERS
    hanging.end()
    run.finish()
