"""The watch for the end of a batch goes on when a look fails, and looks at no more files than it has to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import ClassVar

import pyarrow as pa
import pytest

from backfill.errors import StagingError
from backfill.handoff import Chunk
from backfill.release import Release, in_background
from backfill.staging import Staging
from backfill.staging.batch_files import BatchFiles
from backfill.staging.folder import Folder
from tests.simulator.database import Database
from tests.simulator.harness import Watched
from tests.simulator.upstream import Server, SimulatedUpstream


def test_a_look_that_fails_is_not_the_last_one(caplog: pytest.LogCaptureFixture) -> None:
    seen = Event()
    watching: set[threading.Thread] = set()

    def looks() -> Iterator[bool]:
        yield False
        seen.set()
        yield True
        raise AssertionError("looked again")

    failures: list[Exception] = [
        StagingError("the storage is away"),
        TypeError("of a file system in Python"),
        StagingError("the storage is away"),
    ]
    left = looks()

    def look() -> bool:
        watching.add(threading.current_thread())
        if failures:
            raise failures.pop()
        return next(left)

    in_background(look)
    assert seen.wait(60)
    (thread,) = watching
    thread.join(60)
    assert not thread.is_alive()
    with pytest.raises(AssertionError, match="looked again"):
        next(left)
    assert caplog.text.count("is not known yet whether a batch has been read: the storage is away") == 1
    assert caplog.text.count("is not known yet") == 1


class Asked(BatchFiles):
    """The files of a batch, which note the names that are asked for."""

    asked: ClassVar[list[str]] = []

    def exists(self, name: str) -> bool:
        self.asked.append(name)
        return super().exists(name)


def test_a_look_asks_no_further_than_the_first_chunk_that_is_missing(tmp_path: Path) -> None:
    server, watched = Server(Database()), Watched()
    upstream = SimulatedUpstream(server)
    pin = upstream.snapshot_epoch(None, max_changes=1).pin
    assert pin is not None
    files = Asked(Folder(str(tmp_path)), pin.epoch.number)
    chunks = [Chunk(files, pin.epoch, f"chunk-{number}") for number in range(5)]
    Release(upstream, watched.start).when_staged(pin, chunks)
    for chunk, asked in zip(reversed(chunks), [1, 1, 1, 1, 5], strict=True):
        assert server.pins
        files.write(chunk.name, pa.schema([]), [])
        files.asked.clear()
        watched.pass_time()
        assert len(files.asked) == asked
    assert not server.pins
    assert watched.look is None


def test_a_watch_ends_when_the_next_one_begins_or_when_it_is_stopped(tmp_path: Path) -> None:
    begun, ended = [], []

    def watch(look: Callable[[], bool]) -> Callable[[], None]:
        begun.append(look)
        return lambda: ended.append(look)

    server, staging = Server(Database()), Staging(str(tmp_path))
    upstream = SimulatedUpstream(server)
    pin = upstream.snapshot_epoch(None, max_changes=1).pin
    assert pin is not None
    release = Release(upstream, watch)
    release.when_staged(pin, [Chunk(staging.of_batch(pin.epoch.number), pin.epoch, "chunk-1")])
    assert not ended
    release.when_staged(pin, [Chunk(staging.of_batch(pin.epoch.number), pin.epoch, "chunk-2")])
    assert ended == begun[:1]
    release.stop()
    release.stop()
    assert ended == begun
    assert server.pins
