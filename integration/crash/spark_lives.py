"""One stream over the lives and deaths of whole Sparks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from backfill.offset import Barrier, InitialOffset, Offset, from_text
from integration.crash import oracle
from integration.crash.cluster import cluster
from integration.crash.killing import Plan, Strike, struck
from integration.crash.sink import Sink
from integration.crash.spark_driver import SITE, SparkJob, run
from integration.database import Database
from integration.processes import kill
from integration.spark_session import SOURCES, quick_jvm
from integration.waiting import eventually
from integration.writers import TABLE, Shape

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE: Final = 300.0
"""Seconds for what takes ten on an idle machine."""

QUICK: Final[Mapping[str, str]] = {
    "spark.master": "local[2,4]",
    "spark.driver.defaultJavaOptions": quick_jvm(),
    "spark.executor.defaultJavaOptions": quick_jvm(),
}
"""Two tasks at a time, each of them tried four times."""

AVAILABLE_NOW: Final[Mapping[str, str | bool]] = {"availableNow": True}


class SparkLives:
    """A checkpoint, a state directory and a sink, and the Sparks that work on them one after the other."""

    def __init__(
        self, database: Database, folder: Path, shape: Shape, *, settings: Mapping[str, int], **options: str
    ) -> None:
        self.database, self.folder, self.shape = database, folder, shape
        self.settings = dict(settings)
        self.options = {
            **database.options,
            "dbtable": TABLE,
            "stateDir": str(folder / "state"),
            **shape.options,
            **options,
        }
        self.checkpoint = folder / "checkpoint"
        self.sink = Sink(folder / "sink.sqlite", shape.sink_key)
        self.output = folder / "output"
        self._lives = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._plan = Plan("")

    # -- one life --------------------------------------------------------------------------------------------------

    def start(
        self,
        *strikes: Strike,
        spark: Mapping[str, str] | None = None,
        trigger: Mapping[str, str | bool] | None = None,
        queries: int = 1,
        gate: Path | None = None,
        marks: Path | None = None,
        log_level: str = "WARN",
    ) -> None:
        assert self._process is None, "a Spark is alive"
        self._lives += 1
        if marks is None:
            marks = self.folder / "marks" / str(self._lives)
            marks.mkdir(parents=True)
        self._plan = Plan(str(marks), strikes, tuple(self.settings.items()))
        own = self._variables()
        job = replace(
            self._job(),
            spark={**QUICK, **(spark or {})},
            trigger=trigger or AVAILABLE_NOW,
            log_level=log_level,
            queries=queries,
            gate="" if gate is None else str(gate),
        )
        with self.output.open("ab") as output:
            output.write(f"--- Spark {self._lives}: {strikes}\n".encode())
            output.flush()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "integration.crash.spark_driver", job.to_json()],
                cwd=SOURCES,
                env={**os.environ, **own},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def _job(self) -> SparkJob:
        return SparkJob(
            folder=str(self.folder / f"spark-{self._lives}"),
            options=self.options,
            checkpoint=str(self.checkpoint),
            sink=str(self.sink.path),
            key=self.sink.key,
            trigger=AVAILABLE_NOW,
        )

    def _variables(self) -> dict[str, str]:
        path = filter(None, [SITE, SOURCES, os.environ.get("PYTHONPATH")])
        return {**self._plan.to_environment(), "PYTHONPATH": os.pathsep.join(path)}

    @contextmanager
    def on_cluster(
        self, *strikes: Strike, spark: Mapping[str, str], trigger: Mapping[str, str | bool]
    ) -> Iterator[None]:
        """Runs a Spark on a cluster of two hosts; it is killed when the block ends."""
        marks = self.folder / "marks" / "cluster"
        marks.mkdir(parents=True)
        self._plan = Plan(str(marks), strikes, tuple(self.settings.items()))
        with cluster(self.folder / "cluster", self._variables()) as master:
            try:
                self.start(*strikes, spark={**spark, "spark.master": master}, trigger=trigger, marks=marks)
                yield
            finally:
                self.kill()

    @property
    def struck(self) -> list[str]:
        """The steps at which something has happened in this life."""
        return struck(self._plan)

    def wait_for(self, steps: int) -> None:
        """Waits until so many steps have struck."""
        self._wait(lambda: len(self.struck) >= steps)

    def wait_for_commit(self, number: int) -> None:
        self._wait(lambda: self.last("commits") >= number)

    def _wait(self, is_so: Callable[[], bool]) -> None:
        process = self._process
        assert process is not None

        def is_there() -> bool:
            if is_so():
                return True
            assert process.poll() is None, f"Spark ended before it came there:\n{self.end_of_output()}"
            return False

        eventually(is_there, seconds=PATIENCE, otherwise=lambda: f"Spark does not come there:\n{self.end_of_output()}")

    def kill(self) -> None:
        """Sends SIGKILL to the driver, the JVM, the stream's runner and all workers, as if at one instant."""
        process, self._process = self._process, None
        if process is not None:
            kill(process)

    def die_at(self, step: str, nth: int = 1) -> None:
        """Runs a Spark that is killed at a step: whoever comes there waits, and then all are killed."""
        self.start(Strike(step, nth, "wait"))
        try:
            self.wait_for(1)
        finally:
            self.kill()
        self.require_not_ahead()

    def live(self) -> None:
        """Waits until Spark has read all that there was, and ended."""
        process = self._process
        assert process is not None
        try:
            assert process.wait(PATIENCE) == 0, self.end_of_output()
        finally:
            self.kill()

    def live_in(self, session: SparkSession) -> None:
        """Reads all that there is in a Spark that is not to be killed."""
        assert self._process is None, "a Spark is alive"
        run(session, self._job())

    def end_of_output(self) -> str:
        text = self.output.read_text(errors="replace") if self.output.exists() else ""
        return text[-8000:]

    # -- the checkpoint, as Spark writes it ------------------------------------------------------------------------

    def offset(self, number: int) -> Offset:
        """Where batch `number` ends: the first source's line, after the version and Spark's own settings."""
        if number < 0:
            return InitialOffset()
        return from_text((self.checkpoint / "offsets" / str(number)).read_text().splitlines()[2])

    def last(self, log: str) -> int:
        names = [path.name for path in (self.checkpoint / log).glob("*")]
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def require_not_ahead(self) -> None:
        committed, logged = self.offset(self.last("commits")), self.offset(self.last("offsets"))
        if isinstance(committed, Barrier) and isinstance(logged, Barrier):
            oracle.require_not_ahead(self.database, dict(logged.bookmark)["slot"], committed)

    def require_exact(self) -> None:
        full = "changelog" in self.options
        oracle.require_exact(self.sink, self.database, TABLE, self.shape.select, full=full)
        self.require_not_ahead()
