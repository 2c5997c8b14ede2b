"""A query on the simulated database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from backfill.options import StartupMode
from tests.simulator.conditions import simulated
from tests.simulator.database import Database, Key
from tests.simulator.harness import Spark
from tests.simulator.upstream import Server
from tests.stream.scenario import StartQuery


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartQuery]:
    """Starts a query on a table with rows under these keys, in one vnode with one reader."""

    def start(
        keys: list[Key], *, vnodes: int = 1, partitions: int = 1, mode: StartupMode = StartupMode.INITIAL
    ) -> Spark:
        database = Database({key: (*key, "at first") for key in keys})
        return Spark(Server(database), tmp_path / "staging", vnodes=vnodes, partitions=partitions, mode=mode)

    with simulated():
        yield start
