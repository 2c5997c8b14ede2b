"""Spark as far as a source can tell: offset log, commit log, restarts; and a sink that checks every row."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backfill import handoff
from backfill.offset import Barrier, Nothing, Offset, from_text, to_text
from backfill.options import OnExistingState, OnTruncate, StartupMode, StreamOptions
from backfill.progress import Frontier
from backfill.record import Record
from backfill.staging import Staging
from backfill.stream import Budget, Stream
from backfill.vnode import WHOLE_TABLE
from backfill_state import InMemoryProgressStore, ProgressStore
from tests.simulator.database import Database, Row
from tests.simulator.upstream import SimulatedUpstream, _inside, _parse, _text


@dataclass(slots=True)
class Sink:
    """Folds what it gets and refuses what no consumer could apply (I2, I3)."""

    rows: dict[tuple[int, int], Row] = field(default_factory=dict)
    sequences: dict[tuple[int, int], int] = field(default_factory=dict)
    batches: dict[int, list[dict[str, Any]]] = field(default_factory=dict)

    def commit(self, number: int, rows: list[dict[str, Any]]) -> None:
        if number in self.batches:
            return
        self.batches[number] = rows
        for row in sorted(rows, key=lambda row: (row["_sequence"], row["a"], row["b"])):
            self._apply(row)

    def _apply(self, row: dict[str, Any]) -> None:
        key = (row["a"], row["b"])
        assert row["_sequence"] > self.sequences.get(key, -1), f"sequence does not grow: {row}"
        self.sequences[key] = row["_sequence"]
        match row["_change_type"]:
            case "insert":
                assert key not in self.rows, f"insert of a present key: {row}"
                self.rows[key] = (*key, row["v"])
            case "update_preimage":
                assert self.rows.get(key) == (*key, row["v"]), f"wrong image before: {row}"
            case "update_postimage":
                assert key in self.rows, f"update of an absent key: {row}"
                self.rows[key] = (*key, row["v"])
            case "delete":
                assert key in self.rows, f"delete of an absent key: {row}"
                del self.rows[key]
            case other:
                raise AssertionError(other)


@dataclass(slots=True)
class Spark:
    """One checkpoint, over any number of processes."""

    database: Database
    folder: Path
    vnodes: int = 4
    partitions: int = 3
    full_identity: bool = False
    mode: StartupMode = StartupMode.INITIAL
    on_existing: OnExistingState = OnExistingState.FAIL
    sink: Sink = field(default_factory=Sink)
    store: InMemoryProgressStore = field(default_factory=InMemoryProgressStore)
    offsets: list[str] = field(default_factory=list)
    committed: int = 0
    pins: dict[str, str] = field(default_factory=dict)
    _stream: Stream | None = None

    @contextlib.contextmanager
    def _open(self) -> Iterator[ProgressStore]:
        yield self.store

    def stream(self) -> Stream:
        if self._stream is None:
            upstream = SimulatedUpstream(self.database, self.pins, full_identity=self.full_identity)
            options = StreamOptions(
                startup_mode=self.mode,
                num_partitions=self.partitions,
                vnode_count=self.vnodes,
                max_rows=10,
                max_bytes=1 << 30,
                on_truncate=OnTruncate.FAIL,
                on_existing_state=self.on_existing,
                mark_unchanged=False,
            )
            record = Record(self._open, self.on_existing, clock=lambda: 0.0)
            self._stream = Stream(upstream, record, Staging(str(self.folder)), options)
        return self._stream

    def crash(self) -> None:
        """The driver is gone: what its process held, and every pin. The upstream and the disk stay."""
        if self._stream is not None:
            self._stream._watching.set()
        self._stream = None
        self.pins.clear()

    def start_of(self, number: int) -> Offset:
        return from_text(self.offsets[number - 1]) if number else Nothing()

    def plan(self, max_rows: int | None) -> bool:
        """Logs the next batch's end; False where there is none. A batch that is logged already stays."""
        if len(self.offsets) > self.committed:
            return True
        start = self.start_of(self.committed)
        end = self.stream().latest_offset(start, Budget(max_rows))
        if to_text(end) == to_text(start):
            return False
        self.offsets.append(to_text(end))
        return True

    def read(self, *, only: int | None = None) -> list[dict[str, Any]]:
        """What the tasks of the logged batch read; with `only`, just that many of them, as before a crash."""
        start, end = self.start_of(self.committed), from_text(self.offsets[-1])
        stream = self.stream()
        parts = stream.parts(start, end)
        rows: list[dict[str, Any]] = []
        for part in parts[: only if only is not None else len(parts)]:
            for batch in handoff.read(part, stream._upstream.reader(), stream.rows):
                assert batch.schema.equals(stream.rows.schema)
                rows += batch.to_pylist()
        return rows

    def finish(self, rows: list[dict[str, Any]]) -> None:
        """The sink has the batch, and Spark says so in its commit log."""
        self.sink.commit(self.committed, rows)
        self.committed += 1

    def batch(self, max_rows: int | None) -> bool:
        if not self.plan(max_rows):
            return False
        self.finish(self.read())
        return True

    def barrier(self) -> Barrier:
        offset = from_text(self.offsets[self.committed - 1])
        assert isinstance(offset, Barrier)
        return offset

    def check(self) -> None:
        """I1: what the sink holds is the table as of the barrier, as far as it has been emitted."""
        if not self.committed:
            assert not self.sink.rows
            return
        barrier = self.barrier()
        coverage = barrier.progress.coverage if isinstance(barrier.progress, Frontier) else (WHOLE_TABLE,)
        table = self.database.state(*_parse(barrier.epoch.position))
        expected = {
            key: row for key, row in table.items() if any(_inside(_text(row), item) for item in coverage)
        }
        assert self.sink.rows == expected
