"""Drivers, readers and the database are killed at random while clients write; the sink has to be exact all the same.

It goes on for BACKFILL_CRASH_SECONDS, 20 by default, in rounds of a new table and a new stream each. In every second
round the network between them fails as well. `make crash` is the deep profile; a failure names its round and prints
its seed: BACKFILL_TEST_SEED=… BACKFILL_CRASH_ROUND=… makes the same choices again, from that round on.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

import pytest

from integration.crash.killing import LAST_ROWS_STEPS, SINK_STEPS, STEPS, Strike
from integration.crash.lives import SMALL, Lives
from integration.crash.load import Load
from integration.crash.proxy import Proxy
from integration.crash.weather import proxied
from integration.database import Database, temporary_database
from integration.servers import LocalServer
from integration.writers import BIGINT, COMPOSITE, NUMERIC, UUID

SECONDS = "BACKFILL_CRASH_SECONDS"
DEFAULT_SECONDS = "20"
FIRST_ROUND = "BACKFILL_CRASH_ROUND"

SHAPES = (BIGINT, BIGINT, COMPOSITE, UUID, NUMERIC)
SIZES = (600, 2000)

ALL_STEPS = (*STEPS, *SINK_STEPS)
OF_THE_FIRST_BATCH = ALL_STEPS[: ALL_STEPS.index("bounds kept") + 1]
OF_PLANNING = ALL_STEPS[len(OF_THE_FIRST_BATCH) : ALL_STEPS.index("offset logged")]
OF_PARTITIONS = ALL_STEPS[ALL_STEPS.index("offset logged") : ALL_STEPS.index("chunk about to be read")]
OF_READERS = ALL_STEPS[ALL_STEPS.index("chunk about to be read") : len(STEPS)]

REACHED_WITHIN = 1.0
"""Seconds after which a driver that has not come to its step is killed where it is."""


@dataclass
class Count:
    """What was done, for whoever reads the test's output."""

    drivers: int = 0
    readers: int = 0
    servers: int = 0
    cuts: int = 0
    failed: int = 0
    batches: int = 0
    read_again: int = 0
    steps: Counter[str] = field(default_factory=Counter)

    @property
    def kills(self) -> int:
        return self.drivers + self.readers + self.servers

    def __str__(self) -> str:
        return (
            f"{self.kills} kills ({self.drivers} drivers, {self.readers} readers, {self.servers} servers) and "
            f"{self.cuts} failures of the network; {self.failed} queries failed and were started again; "
            f"{self.batches} batches, {self.read_again} read again to their end"
        )


def number(variable: str, default: str) -> int:
    text = os.environ.get(variable, default)
    if not text.isdigit():
        raise pytest.UsageError(f"{variable} must be a whole number, not {text!r}")
    return int(text)


def random_stream(database: Database, folder: Path, rng: Random, url: str | None, size: int) -> Lives:
    shape = rng.choice(SHAPES)
    shape.create(database, size, identity=rng.choice(["DEFAULT", "FULL"]))
    extra = rng.choice([{}, {"changelog": "full"}, {"envelope": "upsert"}])
    staging = {"stagingDir": (folder / "chunks, été 1").as_uri()} if rng.random() < 0.3 else {}
    settings = {
        **SMALL,
        "backfill.packing:INLINE_BYTES": rng.choice([100, 4000, 1 << 20]),
        "backfill.upstream.postgres.epochs.followed:HEARTBEAT_BYTES": rng.choice([10_000, 1 << 24]),
    }
    return Lives(
        database,
        folder,
        shape,
        url=url,
        settings=settings,
        vnodeCount=str(rng.randrange(1, 9)),
        numPartitions=str(rng.randrange(1, 5)),
        maxBytesPerTrigger=str(rng.choice([2_000, 4_000, 8_000])),
        **staging,
        **extra,
    )


def random_strikes(rng: Random, life: int, *, full: bool) -> list[Strike]:
    if rng.random() < 0.15:
        return []
    if full and rng.random() < 0.3:
        return [Strike(rng.choice([*LAST_ROWS_STEPS]), rng.choice([1, 1, 2]), "group")]
    kinds = [OF_PLANNING, OF_PARTITIONS, OF_READERS, OF_READERS, SINK_STEPS]
    step = rng.choice(OF_THE_FIRST_BATCH if life < 2 and rng.random() < 0.7 else rng.choice(kinds))
    nth = rng.choice([1, 1, 1, 2, 3])
    strikes = [Strike(step, nth, "group")]
    if step in OF_READERS and rng.random() < 0.5:
        strikes = [Strike(step, nth, "process")]
    elif rng.random() < 0.4:
        strikes.append(Strike(rng.choice(OF_READERS), rng.choice([1, 2]), "process"))
    return strikes


def kill_server(server: LocalServer, lives: Lives, rng: Random) -> None:
    lives.wait_a_little(rng.uniform(0, 0.6))
    server.kill()
    if rng.random() < 0.5:
        lives.wait_a_little(rng.uniform(0, 0.4))
    server.start()


def spoil(proxy: Proxy, lives: Lives, rng: Random) -> None:
    """The network fails in some way for a while."""
    lives.wait_a_little(rng.uniform(0, 0.6))
    weathers: list[Callable[[], None]] = [proxy.cut, proxy.refuse, proxy.hold, partial(proxy.slow, 20_000)]
    rng.choice(weathers)()
    lives.wait_a_little(rng.uniform(0, 0.4))
    proxy.mend()


def one_life(lives: Lives, server: LocalServer, proxy: Proxy | None, rng: Random, life: int, count: Count) -> None:
    """A driver starts, and it, a reader, the server, the network or several of them are killed."""
    strikes = random_strikes(rng, life, full=lives.full)
    lives.start(*strikes, budgets=(3, 50, 1000, 1000), seed=rng.getrandbits(32))
    if rng.random() < 0.15:
        kill_server(server, lives, rng)
        count.servers += 1
    if proxy is not None and rng.random() < 0.4:
        spoil(proxy, lives, rng)
        count.cuts += 1
    status = lives.wait_a_little(REACHED_WITHIN if strikes else rng.uniform(0, 0.8))
    if status is None:
        lives.kill()
    lives.require_not_ahead()


def one_round(server: LocalServer, folder: Path, rng: Random, count: Count, *, network: bool, deadline: float) -> None:
    with ExitStack() as stack:
        database = stack.enter_context(temporary_database(server))
        proxy, url = stack.enter_context(proxied(database)) if network else (None, None)
        size = rng.choice(SIZES)
        lives = random_stream(database, folder, rng, url, size)
        with Load(database, lives.shape, size, rng, pause=rng.choice([0.005, 0.02, 0.1])):
            for life in range(rng.randrange(8, 25)):
                one_life(lives, server, proxy, rng, life, count)
                if time.monotonic() > deadline:
                    break
        lives.finish()
        lives.require_constant_sum()
        count.drivers += lives.kills
        count.failed += lives.failures
        count.readers += sum(step.endswith("process)") for step in lives.reached)
        count.batches += lives.checkpoint.commits.last() + 1
        count.read_again += lives.sink.require_equal_attempts()
        count.steps.update(step.partition(" (")[0] for step in lives.reached)


def test_the_sink_is_exact_whoever_is_killed_and_whenever(
    start_postgres: Callable[..., LocalServer], tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    deadline = time.monotonic() + number(SECONDS, DEFAULT_SECONDS)
    server = start_postgres()
    count = Count()
    first = rounds = number(FIRST_ROUND, "1")
    while rounds == first or time.monotonic() < deadline:
        rng = Random(f"{seed}:{rounds}")
        network = rounds % 2 == 0
        try:
            one_round(server, tmp_path / f"round {rounds}", rng, count, network=network, deadline=deadline)
        except BaseException as error:
            error.add_note(f"in round {rounds}, after {count}")
            raise
        with capsys.disabled():
            print(f"\nround {rounds}: by now {count}", end="", flush=True)
        rounds += 1
    with capsys.disabled():
        print(f"\nNothing was violated in {count}.\nSteps: {dict(sorted(count.steps.items()))}")
    assert count.kills
