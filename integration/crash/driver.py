"""A driver that treats a stream as Spark does, in a process of its own that can be killed at any moment.

As with Spark there is a log of offsets, written before a batch is run, and a log of commits, written after the sink
has it; a batch without a commit is run again first. Readers are processes of their own: a part whose reader died is
given to another one. Unlike with Spark a driver starts within milliseconds: drivers are forked from a process that has
everything imported.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Final, TextIO

import pyarrow as pa

from backfill import handoff
from backfill.errors import TransientError
from backfill.handoff import Part
from backfill.offset import Barrier, InitialOffset, Offset, from_text, to_text
from backfill.opening import open_stream
from backfill.options import parse
from backfill.rows import RowFormat
from backfill.upstream import SnapshotReader
from backfill.upstream.postgres.adapter import PostgresUpstream
from backfill.upstream.postgres.session.retries import RetryPolicy
from integration.crash import killing
from integration.crash.sink import Sink

FINISHED: Final = 0
FAULTY: Final = 1
"""What must not happen has happened; the driver's output says what."""

FAILED: Final = 2
"""The query ended with a transient error, as Spark's would, and may be started again."""

TASK_ATTEMPTS: Final = 4
SPARE_READERS: Final = 12
IDLE: Final = 0.02

QUICK: Final = RetryPolicy(first=0.01, most=0.2)
"""What a stream does about transient errors here: as in production, only sooner."""


@dataclass(frozen=True)
class Job:
    """What a driver is told."""

    options: Mapping[str, str]
    checkpoint: Path
    sink: Sink
    plan: killing.Plan
    output: Path
    max_rows: int | None = None
    until_idle: bool = False
    """If set, the driver ends when nothing is left to read; otherwise it goes on until it is killed."""

    seed: int = 0
    budgets: tuple[int, ...] = field(default=())
    """If there are any, each batch takes one of them by chance instead of `max_rows`."""


class Log:
    """Texts numbered from 0, each in a file that appears at once; what Spark's checkpoint is made of."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, number: int, text: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / str(number)
        assert not path.exists(), f"{path} was logged before"
        part = self._folder / f".{number}.{os.getpid()}"
        part.write_text(text)
        part.rename(path)

    def last(self) -> int:
        """The highest number; -1 where there is none."""
        return max(
            (int(path.name) for path in self._folder.glob("*") if path.name.isdigit()),
            default=-1,
        )

    def text(self, number: int) -> str:
        return (self._folder / str(number)).read_text()


@dataclass(frozen=True)
class Checkpoint:
    """The two logs of one query."""

    folder: Path

    @property
    def offsets(self) -> Log:
        return Log(self.folder / "offsets")

    @property
    def commits(self) -> Log:
        return Log(self.folder / "commits")

    def offset(self, number: int) -> Offset:
        """Where batch `number` ends."""
        return from_text(self.offsets.text(number)) if number >= 0 else InitialOffset()

    def committed(self) -> Offset:
        return self.offset(self.commits.last())

    def slot(self) -> str | None:
        """The replication slot's name, once an offset tells it."""
        last = self.offset(self.offsets.last())
        return dict(last.bookmark).get("slot") if isinstance(last, Barrier) else None


# -- readers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    part: Part
    reader: SnapshotReader
    rows: RowFormat

    def run(self) -> pa.Table:
        batches = list(handoff.read(self.part, self.reader, self.rows))
        for batch in batches:
            assert batch.schema.equals(self.rows.schema), batch.schema
        return pa.Table.from_batches(batches, self.rows.schema)


class Readers:
    """Processes that read parts. They come from a process that was forked before the driver has opened anything."""

    def __init__(self) -> None:
        pipes = [multiprocessing.Pipe() for _ in range(SPARE_READERS)]
        self._unborn = [ours for ours, _ in pipes]
        self._idle: list[Connection] = []
        orders, self._orders = multiprocessing.Pipe(duplex=False)
        if os.fork() == 0:
            for end in (self._orders, *self._unborn):
                end.close()
            _bring_up(orders, [theirs for _, theirs in pipes])
            os._exit(0)
        for end in (orders, *(theirs for _, theirs in pipes)):
            end.close()

    def _next(self) -> Connection:
        """The connection to a reader that has nothing to do, which may have to be born first."""
        if self._idle:
            return self._idle.pop()
        self._orders.send(None)
        return self._unborn.pop(0)

    def run(self, tasks: list[Task]) -> list[pa.Table]:
        """The tasks' rows, two tasks at a time; a task whose reader died is tried again, as often as Spark would."""
        results: dict[int, pa.Table] = {}
        waiting = [(number, 1) for number in range(len(tasks))]
        running: dict[Connection, tuple[int, int]] = {}
        while waiting or running:
            while waiting and len(running) < 2:
                number, attempt = waiting.pop(0)
                connection = self._next()
                connection.send(tasks[number])
                running[connection] = (number, attempt)
            for connection in set(running).intersection(wait(running)):
                number, attempt = running.pop(connection)
                found = self._answer(connection)
                if isinstance(found, pa.Table):
                    results[number] = found
                elif attempt == TASK_ATTEMPTS or not (self._idle or self._unborn):
                    raise found
                else:
                    waiting.append((number, attempt + 1))
        return [results[number] for number in range(len(tasks))]

    def _answer(self, connection: Connection) -> pa.Table | Exception:
        try:
            found: pa.Table | Exception = connection.recv()
        except EOFError:
            return TransientError("the reader was killed")
        self._idle.append(connection)
        return found


def _bring_up(orders: Connection, places: list[Connection]) -> None:
    """Forks the reader of the next place at each order, until nobody is left to give orders."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel collects readers that a strike has killed
    while places:
        try:
            orders.recv()
        except EOFError:
            return
        place = places.pop(0)
        if os.fork() == 0:
            for end in (orders, *places):
                end.close()
            _serve(place)
            os._exit(0)
        place.close()


def _serve(connection: Connection) -> None:
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        try:
            connection.send(task.run())
        except Exception as error:  # noqa: BLE001 - the driver raises it
            error.add_note(traceback.format_exc())
            connection.send(error)


# -- the driver ------------------------------------------------------------------------------------------------------


def drive(job: Job) -> None:
    """The body of the process; it ends with one of the statuses above, or is killed."""
    os.setsid()
    with job.output.open("a", buffering=1) as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        status = _status(job, output)
    os._exit(status)  # readers end because their pipes do


def _status(job: Job, output: TextIO) -> int:
    killing.install(job.plan)
    try:
        _run(job)
    except TransientError:
        traceback.print_exc(file=output)
        return FAILED
    except BaseException:  # noqa: BLE001 - said to whoever waits for this process
        traceback.print_exc(file=output)
        return FAULTY
    return FINISHED


def _run(job: Job) -> None:
    parent = os.getppid()
    chance = random.Random(job.seed)
    readers = Readers()
    checkpoint = Checkpoint(job.checkpoint)
    stream = open_stream(parse(job.options, streaming=True))
    upstream = stream._upstream
    assert isinstance(upstream, PostgresUpstream)
    upstream._sessions.retries = QUICK
    snapshot_reader, rows = stream.reader(), stream.rows

    def run_batch(number: int) -> None:
        parts = stream.parts(checkpoint.offset(number - 1), checkpoint.offset(number))
        tables = readers.run([Task(part, snapshot_reader, rows) for part in parts])
        job.sink.write(number, pa.concat_tables([rows.schema.empty_table(), *tables]), killing.reached)
        checkpoint.commits.add(number, "{}")
        killing.reached("commit logged")

    number = checkpoint.offsets.last()
    if number > checkpoint.commits.last():
        run_batch(number)
    while os.getppid() == parent:  # nobody needs a driver whose test was killed
        start = checkpoint.offset(number)
        budget = chance.choice(job.budgets) if job.budgets else job.max_rows
        end = stream.latest_offset(start, budget)
        stream.report()
        if to_text(end) != to_text(start):
            number += 1
            checkpoint.offsets.add(number, to_text(end))
            run_batch(number)
        elif job.until_idle:
            break
        else:
            time.sleep(IDLE)
    stream.close()
