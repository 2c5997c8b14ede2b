"""Drivers, readers and the database are killed at random while clients write; the sink has to be exact all the same.

BACKFILL_CRASH_SECONDS is how long it goes on, in rounds of a new table and a new stream each; 20 by default. The deep
profile, with the seed that a failure prints set in BACKFILL_TEST_SEED to have the same choices again, is

    BACKFILL_CRASH_SECONDS=1800 pytest --timeout 0 -s integration/test_crash_random.py
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from integration.crash.killing import SINK_STEPS, STEPS, Strike
from integration.crash.lives import SMALL, Lives
from integration.crash.load import Load
from integration.database import Database, temporary_database
from integration.servers import LocalServer
from integration.writers import BIGINT, COMPOSITE, NUMERIC, UUID

SECONDS = "BACKFILL_CRASH_SECONDS"
DEFAULT_SECONDS = "20"

SHAPES = (BIGINT, BIGINT, COMPOSITE, UUID, NUMERIC)
SIZE = 600

BY_READERS = ("chunk about to be read", "in the middle of a chunk", "chunk about to be staged", "chunk staged")
EVERY_STEP = (*STEPS, *SINK_STEPS)

REACHED_WITHIN = 1.5
"""Seconds after which a driver that has not come to its step is killed where it is."""


@dataclass
class Count:
    """What was done, for whoever reads the test's output."""

    drivers: int = 0
    readers: int = 0
    servers: int = 0
    failed: int = 0
    batches: int = 0
    read_again: int = 0
    steps: Counter[str] = field(default_factory=Counter)

    @property
    def kills(self) -> int:
        return self.drivers + self.readers + self.servers


def seconds_to_run() -> float:
    text = os.environ.get(SECONDS, DEFAULT_SECONDS)
    if not text.isdigit():
        raise pytest.UsageError(f"{SECONDS} must be a whole number, not {text!r}")
    return float(text)


def random_stream(database: Database, folder: Path, rng: Random) -> Lives:
    shape = rng.choice(SHAPES)
    shape.create(database, SIZE, identity=rng.choice(["DEFAULT", "FULL"]))
    staging = {"stagingDir": (folder / "chunks, été 1").as_uri()} if rng.random() < 0.3 else {}
    settings = {
        **SMALL,
        "backfill.handoff:INLINE_BYTES": rng.choice([100, 4000, 1 << 20]),
        "backfill.upstream.postgres.adapter:HEARTBEAT_BYTES": rng.choice([10_000, 1 << 24]),
    }
    return Lives(
        database,
        folder,
        shape,
        settings=settings,
        vnodeCount=str(rng.randrange(1, 9)),
        numPartitions=str(rng.randrange(1, 5)),
        maxBytesPerTrigger=str(rng.choice([2_000, 4_000, 8_000])),
        **staging,
    )


def random_strikes(rng: Random) -> list[Strike]:
    if rng.random() < 0.25:
        return []
    step = rng.choice(EVERY_STEP)
    nth = rng.choice([1, 1, 1, 2, 3])
    strikes = [Strike(step, nth, "group")]
    if step in BY_READERS and rng.random() < 0.5:
        strikes = [Strike(step, nth, "process")]
    elif rng.random() < 0.3:
        strikes.append(Strike(rng.choice(BY_READERS), rng.choice([1, 2]), "process"))
    return strikes


def one_life(lives: Lives, server: LocalServer, rng: Random, count: Count) -> None:
    """A driver starts, and it, a reader, the server or several of them are killed."""
    strikes = random_strikes(rng)
    lives.start(*strikes, budgets=(3, 50, 1000, 1000), seed=rng.getrandbits(32))
    if rng.random() < 0.15:
        lives.wait_a_little(rng.uniform(0, 0.8))
        server.kill()
        count.servers += 1
        if rng.random() < 0.5:
            lives.wait_a_little(rng.uniform(0, 0.5))
        server.start()
    status = lives.wait_a_little(REACHED_WITHIN if strikes else rng.uniform(0, 1.0))
    if status is None:
        lives.kill()
    lives.require_not_ahead()


def one_round(server: LocalServer, folder: Path, rng: Random, count: Count, deadline: float) -> None:
    with temporary_database(server) as database:
        lives = random_stream(database, folder, rng)
        with Load(database, lives.shape, SIZE, rng, pause=rng.choice([0.005, 0.02, 0.1])):
            for _ in range(rng.randrange(8, 25)):
                one_life(lives, server, rng, count)
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
    start_postgres: Callable[..., LocalServer], tmp_path: Path, rng: Random, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = seconds_to_run()
    deadline = time.monotonic() + seconds
    server = start_postgres(autovacuum="off")
    count, rounds = Count(), 0
    while time.monotonic() < deadline:
        rounds += 1
        one_round(server, tmp_path / f"round {rounds}", rng, count, deadline)
        with capsys.disabled():
            print(
                f"\n{count.kills} kills in {rounds} rounds: {count.drivers} drivers, {count.readers} readers, "
                f"{count.servers} servers; {count.failed} queries failed and were started again; "
                f"{count.batches} batches, {count.read_again} of them read again"
            )
    with capsys.disabled():
        print("steps:", dict(sorted(count.steps.items())))
    assert count.kills
