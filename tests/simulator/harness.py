"""Spark as far as a source can tell: offset log, commit log, tasks, restarts; and what must hold at each barrier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pyarrow as pa

from backfill import handoff
from backfill.control import Control, ReadAgain, Request, Stop
from backfill.counts import ChangeCounter, Counts
from backfill.offset import Barrier, from_text
from backfill.options import LastRowsOptions, OnExistingState, OnTruncate, StartupMode, StreamOptions
from backfill.progress import Frontier
from backfill.rows import RowFormat
from backfill.staging import Staging
from backfill.staging.manifest import Manifest
from backfill.state_dir.record import Record
from backfill.stream import Stream
from backfill.whole_rows.completing import Rules
from backfill.whole_rows.last_rows import LastRows
from backfill_state import InMemoryProgressStore, ProgressStore, StateBusyError
from backfill_state.upsert import InMemoryUpsertState, UpsertLayout, UpsertState
from tests.query import Query
from tests.simulator.database import TRUNCATION, Database, Key, View, key_text, rank, rank_of_text
from tests.simulator.emitted import Emitted
from tests.simulator.sink import Output, Sink, output_rows
from tests.simulator.upstream import SLOT, Server, SimulatedUpstream


@dataclass(slots=True)
class Watched:
    """A watch of a stream for the end of a batch, which looks only when the test says so."""

    look: Callable[[], bool] | None = None

    def start(self, look: Callable[[], bool]) -> Callable[[], None]:
        self.look = look
        return self.stop

    def stop(self) -> None:
        self.look = None

    def pass_time(self) -> None:
        if self.look is not None and self.look():
            self.look = None


@dataclass(slots=True)
class Asked:
    """A request to read rows again, and the keys that have come in batches planned after it."""

    request: ReadAgain
    planned: int
    emitted: set[Key] = field(default_factory=set)

    def concerns(self, key: Key) -> bool:
        """Whether the request covers this key. The stream may take more, where there were no rows, and never less."""
        first, last = self.request.first, self.request.last
        return (first is None or rank_of_text(first) <= rank(key)) and (last is None or rank(key) <= rank_of_text(last))


@dataclass(slots=True)
class Spark(Query[Output]):
    """A query on one table, over any number of processes and checkpoints."""

    server: Server
    folder: Path
    staging_uri: str = ""
    """The place where chunks are staged, if not in `folder`."""

    vnodes: int = 4
    partitions: int = 3
    mode: StartupMode = StartupMode.INITIAL
    on_existing: OnExistingState = OnExistingState.FAIL
    on_truncate: OnTruncate = OnTruncate.FAIL
    rules: Rules | None = None
    """The rules by which changes are told in full, if they are."""

    sink: Sink = field(default_factory=Sink)
    store: InMemoryProgressStore = field(default_factory=InMemoryProgressStore)
    store_is_busy: bool = False
    control: Control = field(default_factory=Control)
    kept_counts: Counts | None = None
    offsets: list[str] = field(default_factory=list)
    committed: int = 0
    watched: Watched = field(default_factory=Watched)
    sinks: dict[int, Sink] = field(default_factory=dict)
    """The sink as it was at the barrier of each epoch."""

    states: dict[str, UpsertState] = field(default_factory=dict)
    """The last rows of each stream; they outlive processes, as a file does."""

    asked: list[Asked] = field(default_factory=list)
    """The requests that are not done yet."""

    done: int = 0
    """How many requests have been carried out, each of them to the last row."""

    reached: set[str] = field(default_factory=set)
    """Names of what has occurred at some barrier: ways in which its snapshot rows were read, and what it carries."""

    _stream: Stream | None = None
    _clock: float = 0.0
    _numbers: Iterator[int] = field(default_factory=count)

    @property
    def database(self) -> Database:
        return self.server.database

    # -- the driver's process --------------------------------------------------------------------------------------

    def stream(self) -> Stream:
        if self._stream is None:
            options = StreamOptions(
                startup_mode=self.mode,
                num_partitions=self.partitions,
                vnode_count=self.vnodes,
                max_rows=10,
                max_bytes=1 << 30,
                on_truncate=self.on_truncate,
                on_existing_state=self.on_existing,
                mark_unchanged=False,
                last_rows=None if self.rules is None else _options_of(self.rules),
            )
            upstream = SimulatedUpstream(self.server)
            record = Record(upstream, self._open, options, clock=self._now)
            self._stream = Stream(
                upstream,
                record,
                self._staging(),
                options,
                open_last_rows=None if self.rules is None else self._last_rows,
                watch=self.watched.start,
                read_control=lambda: self.control,
                counting=ChangeCounter(lambda: self.kept_counts, self._keep_counts),
            )
        return self._stream

    def _staging(self) -> Staging:
        return Staging(self.staging_uri or str(self.folder))

    @contextmanager
    def _open(self) -> Iterator[ProgressStore]:
        if self.store_is_busy:
            raise StateBusyError("backfill.duckdb", None)
        yield self.store

    def _last_rows(self, rows: RowFormat) -> LastRows:
        assert self.rules is not None
        return LastRows(self._state, rows, self.rules)

    def _state(self, layout: UpsertLayout) -> UpsertState:
        assert self.rules is not None
        state = InMemoryUpsertState(layout, tombstones=bool(self.rules.order_column))
        return self.states.setdefault(layout.stream_id, state)

    def _keep_counts(self, counts: Counts) -> None:
        self.kept_counts = counts

    def _now(self) -> float:
        self._clock += 0.4
        return self._clock

    @property
    def running(self) -> bool:
        """Whether a process knows the stream already."""
        return self._stream is not None and bool(self.offsets)

    def crash(self) -> None:
        """Ends the driver: what its process held is gone, and so is the pin. The upstream and the disk stay."""
        self._stream = None
        self.store_is_busy = False
        self.watched.stop()
        self.server.pins = None

    def begin_anew(self, on_existing: OnExistingState) -> None:
        """Goes on with a new checkpoint; if it resumes, with the sink as of the epoch that the state directory has."""
        self.crash()
        self.on_existing = on_existing
        epoch = self.store.epoch()
        resumed = on_existing is OnExistingState.RESUME and epoch is not None
        self.sink = self.sinks[epoch].copy() if resumed and epoch is not None else Sink()
        self.offsets, self.committed = [], 0
        self.asked.clear()

    # -- rows that are taken again ---------------------------------------------------------------------------------

    def ask_again(self, first: Key | None = None, last: Key | None = None) -> None:
        """Asks as the command does, which learns from the state directory the stream and what has been taken up."""
        begin, end = (None if key is None else key_text(key) for key in (first, last))
        request = ReadAgain(self._next_request(), self._recorded_stream(), begin, end)
        self.asked.append(Asked(request, len(self.offsets)))
        self._keep_request(request)

    def ask_to_stop(self) -> None:
        self.asked.clear()
        self._keep_request(Stop(self._next_request(), self._recorded_stream()))

    def _next_request(self) -> str:
        return f"request {next(self._numbers)}"

    def _recorded_stream(self) -> str:
        identity = self.store.identity()
        assert identity is not None
        return identity.stream_id

    def _keep_request(self, request: Request) -> None:
        recorded = self.store.offset()
        barrier = None if recorded is None else from_text(recorded)
        self.control = self.control.asked(request, barrier.taken_up if isinstance(barrier, Barrier) else None)

    def _count_again(self, rows: list[Output]) -> None:
        """Requires of each request that is done that all its rows have come since, read again or by a change."""
        for asked in self.asked:
            if self.committed > asked.planned:
                asked.emitted |= {row[:2] for row in rows if row[3] in ("insert", "update_postimage")}
        left = self._left_to_do()
        for asked in [asked for asked in self.asked if asked.request not in left]:
            table = self.database.table(View.parse(self.barrier().epoch.position))
            missing = {key for key in table.by_key if asked.concerns(key)} - asked.emitted
            assert not missing, f"done, and these rows have not come again: {missing}"
            self.asked.remove(asked)
            self.done += 1

    def _left_to_do(self) -> list[ReadAgain]:
        barrier = self.barrier()
        again, manifest = barrier.again, self._manifest(barrier)
        known = [asked.request for asked in self.asked]
        if again is None:
            return known
        under_way = again.frontier is not None or (manifest is not None and manifest.given_up)
        waiting = self.control.pending(barrier.stream, again.request).to_read
        return [item for item in known if item in waiting or (under_way and item.id == again.request)]

    # -- offset log and commit log ---------------------------------------------------------------------------------

    def ask(self, max_rows: int | None = None) -> str:
        end = Query.ask(self, max_rows)
        self._require_unacknowledged()
        return end

    def task(self, part: handoff.Part) -> Iterator[pa.RecordBatch]:
        stream = self.stream()
        return handoff.read(part, stream.reader(), stream.rows)

    def read(self, meanwhile: Callable[[], None] = lambda: None) -> list[Output]:
        """Returns what the tasks of the logged batch read; calls `meanwhile` before each task."""
        rows: list[Output] = []
        for part in self.parts():
            meanwhile()
            rows += output_rows(self.task(part), self.stream().rows.schema)
            self.watched.pass_time()
        return rows

    def commit(self, rows: list[Output]) -> None:
        end = self.barrier(self.committed + 1)
        if self.mode is StartupMode.LATEST and not self.committed:
            self.sink.rows = dict(self.database.table(View.parse(end.epoch.position)).by_key)
        again = end.again is not None and isinstance(end.again.progress, Frontier)
        self.sink.apply(rows, full=self.rules is not None, again=again)
        self._require_versions(rows, end)
        self.committed += 1
        self._count_again(rows)
        self.sinks[self.barrier().epoch.number] = self.sink.copy()

    def _require_versions(self, rows: list[Output], end: Barrier) -> None:
        """Requires that a change carries the version of the commit that made it; a snapshot row, that of its epoch."""
        for row in rows:
            _, _, _, kind, is_snapshot, version, timestamp, _ = row
            if is_snapshot:
                assert (version, timestamp) == (end.epoch.version, end.epoch.timestamp)
                continue
            commit = self.database.log[version - 1]
            if kind == "truncate":
                assert TRUNCATION in commit.changes
                continue
            sides = [change.old if kind in ("delete", "update_preimage") else change.new for change in commit.changes]
            assert row[:2] in [side[:2] for side in sides if side is not None], f"not in its commit: {row}"
            assert timestamp == version * 1_000_000

    # -- what holds at a barrier -----------------------------------------------------------------------------------

    def check(self) -> None:
        """Requires I1: the sink holds the table as of the barrier, as far as it has been emitted, and no other row."""
        if not self.committed:
            assert not self.sink.rows or self.on_existing is OnExistingState.RESUME
            return
        barrier = self.barrier()
        manifest = self._manifest(barrier)
        self._note_reached(barrier, manifest)
        emitted = Emitted(self.server, barrier, manifest)
        if self.mode is StartupMode.SNAPSHOT:
            assert self.sink.rows == self.database.table(emitted.latest_seen()).by_key
        else:
            expected, early = emitted.rows(), emitted.looked_up_early()
            found = {key: row for key, row in self.sink.rows.items() if key not in early}
            assert found == {key: row for key, row in expected.items() if key not in early}

    def _note_reached(self, barrier: Barrier, manifest: Manifest | None) -> None:
        if manifest is not None:
            self.reached |= {type(item.reading).__name__ for item in manifest.splits}
        carried = {"ahead": barrier.ahead, "resumed": barrier.resumed_from, "again": barrier.again}
        self.reached |= {name for name, value in carried.items() if value}

    def _manifest(self, barrier: Barrier) -> Manifest | None:
        return self._staging().of_stream(barrier.stream).of_batch(barrier.epoch.number).manifest()

    def _require_unacknowledged(self) -> None:
        """Requires I5: whatever the last committed batch did not have can still be had."""
        for name, begin in self.database.slots.items():
            committed = self.offset(self.committed)
            if isinstance(committed, Barrier) and dict(committed.bookmark)[SLOT] == name:
                seen = View.parse(committed.epoch.position)
                lost = [entry.lsn for entry in self.database.log[: begin - 1] if not seen.shows(entry.lsn)]
                assert not lost, f"acknowledged before they were committed: {lost}"


def same_rows(one: list[Output], other: list[Output]) -> bool:
    return Counter(one) == Counter(other)


def _options_of(rules: Rules) -> LastRowsOptions:
    return LastRowsOptions(upsert=rules.skips_equal, order_column=rules.order_column, memory=0)
