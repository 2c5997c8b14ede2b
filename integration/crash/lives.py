"""One stream over the lives and deaths of its drivers."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Final

from backfill.offset import Barrier
from integration.crash import oracle
from integration.crash.driver import FAILED, FAULTY, FINISHED, Checkpoint, Job, drive
from integration.crash.killing import Plan, Strike, struck
from integration.crash.sink import Sink
from integration.database import Database
from integration.writers import TABLE, Shape

PATIENCE: Final = 300.0
"""Seconds for what takes one or two on an idle machine."""

KILLED: Final = -signal.SIGKILL

SMALL: Final[Mapping[str, int]] = {
    "backfill.chunks:MIN_SPLIT_ROWS": 20,
    "backfill.upstream.postgres.snapshot.reader:BATCH_BYTES": 1000,
    "backfill.packing:INLINE_BYTES": 4000,
    "backfill.packing:FILE_BYTES": 8000,
}
"""Limits for tables of a few hundred rows: a batch has several chunks, a chunk several record batches, and changes
travel in files now and then."""

_processes = multiprocessing.get_context("forkserver")
# PyArrow imports pandas, where it is there, when it makes the first array of values: 0.35 s in every driver and reader.
_processes.set_forkserver_preload(["integration.crash.driver", "pandas"])


class Lives:
    """A checkpoint, a state directory and a sink, and the drivers that work on them one after the other."""

    def __init__(
        self,
        database: Database,
        folder: Path,
        shape: Shape,
        *,
        url: str | None = None,
        settings: Mapping[str, int] = SMALL,
        **options: str,
    ) -> None:
        self.database = database
        self.shape = shape
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.options: dict[str, str] = {
            **database.options,
            **({} if url is None else {"url": url}),
            "dbtable": TABLE,
            "stateDir": str(folder / "state"),
            **shape.options,
            **options,
        }
        self.settings = dict(settings)
        self.checkpoint = Checkpoint(folder / "checkpoint")
        self.sink = Sink(folder / "sink.sqlite", shape.sink_key)
        self.output = folder / "output"
        self.kills = 0
        self.failures = 0
        self.reached: list[str] = []
        """The steps at which drivers or readers were killed."""

        self._lives = 0
        self._process: ForkServerProcess | None = None
        self._plan = Plan("")

    # -- one life --------------------------------------------------------------------------------------------------

    def start(
        self,
        *strikes: Strike,
        until_idle: bool = False,
        max_rows: int | None = None,
        budgets: tuple[int, ...] = (),
        seed: int = 0,
    ) -> None:
        """Starts a new driver, to be struck at these steps."""
        assert self._process is None, "a driver is alive"
        self._lives += 1
        marks = self.folder / "marks" / str(self._lives)
        marks.mkdir(parents=True)
        self._plan = Plan(str(marks), strikes, tuple(self.settings.items()))
        job = Job(
            options=self.options,
            checkpoint=self.checkpoint.folder,
            sink=self.sink,
            plan=self._plan,
            output=self.output,
            max_rows=max_rows,
            until_idle=until_idle,
            budgets=budgets,
            seed=seed,
        )
        with self.output.open("a") as output:
            output.write(f"--- driver {self._lives}: {strikes}\n")
        self._process = _processes.Process(target=drive, args=(job,), name=f"driver-{self._lives}")
        self._process.start()

    def wait(self, seconds: float) -> int | None:
        """Waits for the driver; returns how it ended, a status of `driver` or KILLED, or None if it lives on."""
        assert self._process is not None
        self._process.join(seconds)
        status = self._process.exitcode
        if status is None:
            return None
        self._process.close()
        self._process = None
        self.reached += struck(self._plan)
        if status == KILLED:
            self.kills += 1
        if status == FAILED:
            self.failures += 1
        assert status != FAULTY, f"the driver found a fault:\n{self.end_of_output()}"
        return status

    def wait_a_little(self, seconds: float) -> int | None:
        """Like `wait`, but also None where the driver has ended before."""
        return None if self._process is None else self.wait(seconds)

    def kill(self) -> int | None:
        """Sends SIGKILL to the driver and its readers, if it is still alive; returns how it ended."""
        if self._process is None:
            return None
        pid = self._process.pid
        # The number of a process that has ended may be somebody else's by now.
        if pid is not None and self._process.is_alive():
            # It leads a group of its own, unless it is in its very first moments.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            self._process.kill()
        return self.wait(PATIENCE)

    def die_at(self, strike: Strike, **how: int | None) -> None:
        """Runs a driver that is killed at a step; fails if it never reaches the step."""
        self.start(strike, **how)  # type: ignore[arg-type]  # `how` is max_rows
        status = self.wait(PATIENCE)
        if status is None:
            self.kill()
            raise AssertionError(f"the driver never came to {strike}:\n{self.end_of_output()}")
        assert status == KILLED, f"the driver ended with {status} before it came to {strike}:\n{self.end_of_output()}"
        self.require_not_ahead()

    def live(self, *, max_rows: int | None = None) -> None:
        """Runs drivers, none of which is killed, until nothing is left to read."""
        deadline = time.monotonic() + PATIENCE
        status: int | None = -1
        while status != FINISHED:
            assert time.monotonic() < deadline, f"the stream does not come to its end:\n{self.end_of_output()}"
            self.start(until_idle=True, max_rows=max_rows)
            status = self.wait(PATIENCE)
            if status is None:
                self.kill()

    def end_of_output(self) -> str:
        """The end of what drivers said."""
        return self.output.read_text(errors="replace")[-6000:] if self.output.exists() else ""

    # -- the judge -------------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether changes come with the whole row before them, from the last row of every key."""
        return "changelog" in self.options or "envelope" in self.options

    @property
    def slot(self) -> str:
        slot = self.checkpoint.slot()
        assert slot is not None, "no offset has been logged"
        return slot

    def require_not_ahead(self) -> None:
        """Requires that the slot is not beyond the last commit in the log of commits."""
        committed = self.checkpoint.committed()
        if isinstance(committed, Barrier):
            oracle.require_not_ahead(self.database, self.slot, committed)

    def finish(self) -> None:
        """Reads everything; requires that the sink equals the table and that its whole history is right."""
        self.live()
        oracle.require_exact(self.sink, self.database, TABLE, self.shape.select, full=self.full)
        self.require_not_ahead()

    def require_constant_sum(self) -> int:
        ((constant,),) = self.database.execute(f"SELECT sum(balance)::bigint FROM {TABLE}")
        offsets = [self.checkpoint.offset(number) for number in range(self.checkpoint.commits.last() + 1)]
        return oracle.require_constant_sum(self.sink, offsets, constant)
