"""The state directory beside the checkpoint: the six cases, on a store in memory and on DuckDB's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from backfill.epoch import Epoch
from backfill.errors import DefiniteError, SchemaChangedError, StateBusyError, StateError
from backfill.offset import Barrier, from_text
from backfill.options import LastRowsOptions, OnExistingState, StartupMode, parse
from backfill.progress import Again, Completed, Finished, Frontier, InProgress, Progress
from backfill.state_dir.record import FOLLOW_INTERVAL, NamedStream, Record
from backfill.upstream import Bookmark, Identity, TableSchema
from backfill.vnode import Key
from backfill_state import DuckDBProgressStore, InMemoryProgressStore, ProgressStore, StateDamagedError
from backfill_state import StateBusyError as StoreBusyError
from tests.simulator.database import Database
from tests.simulator.upstream import TABLE, Server, SimulatedUpstream

START = Frontier.at_start((("1", "1"), ("2", "2")))
MIDDLE = START.advanced({0: Completed(5), 1: InProgress(("1", "9"), 2)})
DONE = MIDDLE.advanced({1: Completed(4), 2: Completed(0)})
OVER = Finished(3, 9)

OPTIONS = parse({"url": "dbname=shop", "dbtable": "t"}).stream


class Upstream(SimulatedUpstream):
    """A table under a name, in a system; keeps what was detached."""

    def __init__(self, system: str = "system", table_id: str = "1", slot: str = "slot") -> None:
        super().__init__(Server(Database()))
        self.which = Identity(system, "public.t", table_id)
        self.slot = slot
        self.named = ""
        self.detached: list[Bookmark] = []

    def identity(self) -> Identity:
        return self.which

    def bookmark(self, stream: str) -> Bookmark:
        return (("slot", self.named or f"{self.slot}_{stream}"),)

    def detach(self, bookmark: Bookmark) -> tuple[str, ...]:
        self.detached.append(bookmark)
        return ()


@dataclass
class Folder:
    """A state directory over any number of processes, in the test's own time."""

    open: Callable[[], AbstractContextManager[ProgressStore]]
    error: Exception | None = None
    now: float = 100.0
    opened: int = 0
    forgotten: list[str] = field(default_factory=list)
    upstream: Upstream = field(default_factory=Upstream)

    @contextmanager
    def _open(self) -> Iterator[ProgressStore]:
        self.opened += 1
        if self.error is not None:
            raise self.error
        with self.open() as store:
            yield store

    def process(
        self,
        on_existing: OnExistingState = OnExistingState.FAIL,
        *,
        upstream: Upstream | None = None,
        mode: StartupMode = StartupMode.INITIAL,
        last_rows: LastRowsOptions | None = None,
    ) -> Record:
        options = replace(OPTIONS, on_existing_state=on_existing, startup_mode=mode, last_rows=last_rows)
        upstream = upstream or self.upstream
        return Record(upstream, self._open, options, clock=lambda: self.now)

    def begin(self, record: Record) -> NamedStream:
        named = record.begin(self.forgotten.append)
        assert isinstance(named, NamedStream)
        return named

    def begun(self, on_existing: OnExistingState = OnExistingState.FAIL) -> tuple[Record, NamedStream]:
        record = self.process(on_existing)
        return record, self.begin(record)

    def recorded(self, number: int, progress: Progress = MIDDLE) -> Barrier:
        """A stream that has got to this barrier, in a process that has ended since."""
        record, named = self.begun()
        record.keep_bounds((("1", "1"), ("2", "2")))
        barrier = barrier_of(named, number, progress)
        assert record.commit(barrier)
        return barrier

    def told(self) -> dict[int, tuple[Any, ...]]:
        """What the table `backfill_progress` says of each vnode: its position, whether it is finished, its rows."""
        with self.open() as store:
            rows = zip(*(column.to_pylist() for column in store.progress().columns), strict=True)
            return {row[0]: (None if row[1] is None else (row[1], row[2]), row[3], row[4]) for row in rows}

    def epoch(self) -> int | None:
        with self.open() as store:
            return store.epoch()


def barrier_of(named: NamedStream, number: int, progress: Progress) -> Barrier:
    return Barrier(named.stream, named.bookmark, Epoch(number, f"p{number}", number, number), progress)


@pytest.fixture(params=["memory", "duckdb"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    if request.param == "duckdb":
        return Folder(lambda: DuckDBProgressStore(tmp_path / "state.duckdb"))
    store = InMemoryProgressStore()
    return Folder(lambda: nullcontext(store))


# -- a new checkpoint, an empty directory --------------------------------------------------------------------------


def adopt(record: Record, barrier: Barrier, *, order_matters: bool = True) -> Bookmark:
    found, bookmark = record.checked(barrier, order_matters=order_matters)
    record.adopt(barrier, found, bookmark)
    return bookmark


def test_a_stream_begins_under_a_name_of_its_own(folder: Folder) -> None:
    _, named = folder.begun()
    assert len(named.stream) == 8
    assert named.bookmark == (("slot", f"slot_{named.stream}"),)
    with folder.open() as store:
        found = store.identity()
    assert found is not None
    assert (found.stream_id, found.properties, found.upstream) == (named.stream, named.bookmark, "simulated")
    assert (found.system, found.table, found.table_id) == ("system", "public.t", "1")
    assert found.key.names == ["a", "b"]
    assert folder.epoch() is None


def test_beginning_again_before_the_first_barrier_keeps_the_name(folder: Folder) -> None:
    record, first = folder.begun()
    record.keep_bounds((("1", "1"),))
    record, again = folder.begun()
    record.keep_bounds((("3", "3"), ("4", "4")))
    assert again == first
    assert folder.upstream.detached == []
    with folder.open() as store:
        assert store.bounds()["a"].to_pylist() == [3, 4]


def test_before_the_first_barrier_the_options_may_name_another_slot(folder: Folder) -> None:
    _, first = folder.begun()
    folder.upstream.slot = "other"
    _, again = folder.begun()
    assert again.stream == first.stream
    assert again.bookmark == (("slot", f"other_{first.stream}"),)
    assert folder.upstream.detached == [first.bookmark]
    with folder.open() as store:
        found = store.identity()
    assert found is not None
    assert found.properties == again.bookmark


def test_before_the_first_barrier_a_slot_that_the_options_named_is_left_to_whoever_made_it(folder: Folder) -> None:
    folder.upstream.named = "theirs"
    folder.begun()
    folder.upstream.named = ""
    _, again = folder.begun()
    assert again.bookmark == (("slot", f"slot_{again.stream}"),)
    assert folder.upstream.detached == []


# -- a new checkpoint, a directory with progress -------------------------------------------------------------------


def test_progress_of_another_checkpoint_is_an_error_that_names_the_ways_out(folder: Folder) -> None:
    barrier = folder.recorded(4)
    with pytest.raises(StateError) as caught:
        folder.process().begin(folder.forgotten.append)
    text = str(caught.value)
    assert f"stream {barrier.stream} (table public.t, epoch 4)" in text
    assert "onExistingState=resume" in text
    assert "onExistingState=restart" in text
    assert folder.epoch() == 4


def test_where_last_rows_are_kept_resuming_is_no_way_out(folder: Folder) -> None:
    barrier = folder.recorded(4)
    record = folder.process(last_rows=LastRowsOptions(upsert=False, order_column="", memory=0))
    with pytest.raises(StateError, match="onExistingState=restart") as new:
        record.begin(folder.forgotten.append)
    with pytest.raises(StateError, match="onExistingState=restart") as older:
        adopt(record, replace(barrier, epoch=Epoch(3, "p3", 3, 3)))
    assert "resume" not in new.value.message + older.value.message


def test_progress_is_resumed_from_where_that_was_asked_for(folder: Folder) -> None:
    barrier = folder.recorded(4)
    record = folder.process(OnExistingState.RESUME)
    assert record.begin(folder.forgotten.append) == barrier
    assert folder.upstream.detached == []


def test_a_restart_removes_what_the_old_stream_made_and_takes_a_new_name(folder: Folder) -> None:
    barrier = folder.recorded(4)
    _, named = folder.begun(OnExistingState.RESTART)
    assert folder.upstream.detached == [barrier.bookmark]
    assert folder.forgotten == [barrier.stream]
    assert named.stream != barrier.stream
    assert folder.epoch() is None
    assert folder.told() == {}


@pytest.mark.parametrize("how", OnExistingState)
def test_a_directory_of_another_kind_of_upstream_is_refused(folder: Folder, how: OnExistingState) -> None:
    barrier = folder.recorded(4)
    folder.upstream.name = "other"
    with pytest.raises(StateError, match=f"holds stream {barrier.stream} of the simulated table public.t, and the opt"):
        folder.process(how).begin(folder.forgotten.append)
    assert (folder.upstream.detached, folder.epoch()) == ([], 4)


def test_a_snapshot_alone_has_nothing_that_a_restart_would_remove(folder: Folder) -> None:
    named = folder.begin(folder.process(mode=StartupMode.SNAPSHOT))
    folder.begun(OnExistingState.RESTART)
    assert folder.upstream.detached == []
    assert folder.forgotten == [named.stream]


@pytest.mark.parametrize("how", [OnExistingState.RESUME, OnExistingState.RESTART])
def test_resume_and_restart_of_an_empty_directory_just_begin(folder: Folder, how: OnExistingState) -> None:
    folder.begun(how)
    assert folder.upstream.detached == []


# -- a checkpoint that goes on --------------------------------------------------------------------------------------


def test_a_directory_of_this_stream_is_brought_up_to_date(folder: Folder) -> None:
    barrier = folder.recorded(4, MIDDLE)
    record = folder.process()
    later = replace(barrier, epoch=Epoch(6, "p6", 6, 6), progress=DONE)
    assert adopt(record, barrier) == barrier.bookmark
    assert record.commit(later)
    assert folder.epoch() == 6
    assert folder.told() == {0: (None, True, 5), 1: (None, True, 4), 2: (None, True, 0)}


def test_a_directory_that_is_behind_is_brought_up_to_date(folder: Folder) -> None:
    barrier = folder.recorded(4, START)
    later = replace(barrier, epoch=Epoch(9, "p9", 9, 9), progress=MIDDLE)
    record = folder.process()
    adopt(record, later)
    assert record.commit(later)
    assert folder.told() == {0: (None, True, 5), 1: ((1, 9), False, 2), 2: (None, False, 0)}


def test_a_directory_that_was_lost_is_rebuilt_from_the_offset(folder: Folder) -> None:
    barrier = Barrier("1f0c9a77", (("slot", "s"),), Epoch(4, "p4", 4, 4), MIDDLE)
    record = folder.process()
    adopt(record, barrier)
    assert record.commit(barrier)
    with folder.open() as store:
        found = store.identity()
        assert store.bounds()["b"].to_pylist() == [1, 2]
        assert from_text(store.offset() or "") == barrier
    assert found is not None
    assert (found.stream_id, found.properties) == ("1f0c9a77", (("slot", "s"),))
    assert folder.told() == {0: (None, True, 5), 1: ((1, 9), False, 2), 2: (None, False, 0)}


def test_a_directory_of_another_stream_is_refused(folder: Folder) -> None:
    barrier = folder.recorded(4)
    other = replace(barrier, stream="other000")
    with pytest.raises(StateError, match=f"belongs to stream other000, and stateDir to stream {barrier.stream}"):
        adopt(folder.process(), other)


def test_a_directory_that_is_ahead_is_refused_with_both_epochs(folder: Folder) -> None:
    barrier = folder.recorded(9)
    older = replace(barrier, epoch=Epoch(4, "p4", 4, 4))
    with pytest.raises(StateError, match="checkpoint stands at epoch 4 and stateDir at epoch 9: an older checkpoint"):
        adopt(folder.process(), older)


# -- another table ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("upstream", "reason"),
    [
        (Upstream(system="elsewhere"), "followed system system, and the options lead to system elsewhere"),
        (Upstream(table_id="2"), r"table public.t was dropped and made again .* had the id 1, and has 2\)"),
    ],
    ids=["system", "table"],
)
def test_another_table_is_refused_by_every_way_in(folder: Folder, upstream: Upstream, reason: str) -> None:
    folder.begun()
    with pytest.raises(StateError, match=reason):
        folder.process(upstream=upstream).begin(folder.forgotten.append)
    barrier = folder.recorded(1)
    with pytest.raises(StateError, match=reason):
        adopt(folder.process(upstream=upstream), barrier)
    for asked in (OnExistingState.FAIL, OnExistingState.RESUME):
        with pytest.raises(StateError, match=reason):
            folder.process(asked, upstream=upstream).begin(folder.forgotten.append)


# -- a key with other types, or in another order ---------------------------------------------------------------------


class Rekeyed(Upstream):
    """The same table when its key is `b, a`, and `a` is of another type."""

    key_columns = pa.schema([("b", pa.int64()), ("a", pa.int32())])

    def schema(self) -> TableSchema:
        columns = pa.schema([*self.key_columns, ("v", pa.string())])
        return TableSchema(columns, output=("a", "b", "v"), key=("b", "a"))

    def typed(self, keys: Sequence[Key]) -> pa.RecordBatch:
        assert not keys, "no position is left"
        return pa.RecordBatch.from_pylist([], schema=self.key_columns)

    def require_same_order(self, bookmark: Bookmark) -> None:
        raise SchemaChangedError(f"not the order of {dict(bookmark)['slot']}")

    def reordered(self, bookmark: Bookmark) -> Bookmark:
        return (*bookmark, ("order", "of now"))


class Reordered(Rekeyed):
    def schema(self) -> TableSchema:
        return TABLE


class Retyped(Rekeyed):
    key_columns = pa.schema([("a", pa.int64()), ("b", pa.int32())])

    def schema(self) -> TableSchema:
        return replace(super().schema(), key=("a", "b"))


@pytest.mark.parametrize("progress", [OVER, DONE], ids=["over", "just over"])
@pytest.mark.parametrize("now", [Rekeyed(), Retyped()], ids=["order and type", "type"])
def test_once_no_position_is_left_the_key_may_be_another(folder: Folder, progress: Progress, now: Upstream) -> None:
    barrier = folder.recorded(4, progress)
    record = folder.process(upstream=now)
    bookmark = adopt(record, barrier, order_matters=False)
    assert bookmark == (*barrier.bookmark, ("order", "of now"))
    for number in (4, 5):
        assert record.commit(replace(barrier, epoch=Epoch(number, f"p{number}", number, number)), at_once=True)
    with folder.open() as store:
        found, progress_now = store.identity(), store.progress()
        assert (store.epoch(), store.bounds().num_rows) == (5, 0)
    assert found is not None
    assert (found.key, found.properties) == (now.schema().key_schema, bookmark)
    assert progress_now["backfill_finished"].to_pylist() == [True, True, True]


@pytest.mark.parametrize(
    ("now", "kind", "reason"),
    [
        (Rekeyed(), StateError, r"the key of public.t is \(b, a\) and was \(a, b\) when"),
        (Retyped(), SchemaChangedError, r"is \(a int64, b int32\) and was \(a int64, b int64\) .* not all rows"),
        (Reordered(), SchemaChangedError, "not the order of slot_"),
    ],
    ids=["columns", "type", "order"],
)
def test_while_positions_are_left_another_key_is_refused(
    folder: Folder, now: Upstream, kind: type[DefiniteError], reason: str
) -> None:
    barrier = folder.recorded(4, MIDDLE)
    with pytest.raises(kind, match=reason):
        adopt(folder.process(upstream=now), barrier)
    assert folder.told() == {0: (None, True, 5), 1: ((1, 9), False, 2), 2: (None, False, 0)}


# -- recording barriers ----------------------------------------------------------------------------------------------


def test_a_barrier_names_only_the_vnodes_that_moved(folder: Folder) -> None:
    record, named = folder.begun()
    record.commit(barrier_of(named, 1, START))
    record.commit(barrier_of(named, 2, MIDDLE))
    assert folder.told() == {0: (None, True, 5), 1: ((1, 9), False, 2), 2: (None, False, 0)}
    record.commit(barrier_of(named, 3, DONE))
    record.commit(barrier_of(named, 4, OVER))
    assert folder.told() == {0: (None, True, 5), 1: (None, True, 4), 2: (None, True, 0)}
    assert folder.epoch() == 4


def test_a_barrier_names_all_vnodes_where_an_older_copy_of_the_file_was_put_back(folder: Folder) -> None:
    record, named = folder.begun()
    record.commit(barrier_of(named, 1, START))
    record.commit(barrier_of(named, 2, MIDDLE))
    with folder.open() as store:
        store.reset()
    other = folder.process()
    adopt(other, barrier_of(named, 1, START))
    assert other.commit(barrier_of(named, 1, START))
    assert record.commit(barrier_of(named, 3, DONE))
    assert folder.told() == {0: (None, True, 5), 1: (None, True, 4), 2: (None, True, 0)}


def test_recording_a_barrier_again_does_not_open_the_file(folder: Folder) -> None:
    record, named = folder.begun()
    barrier = barrier_of(named, 1, MIDDLE)
    assert record.commit(barrier)
    opened = folder.opened
    assert record.commit(barrier)
    assert folder.opened == opened


def test_recording_the_same_barrier_in_a_new_process_changes_nothing(folder: Folder) -> None:
    barrier = folder.recorded(4)
    before = folder.told()
    record = folder.process()
    adopt(record, barrier)
    assert record.commit(barrier)
    assert (folder.told(), folder.epoch()) == (before, 4)


def test_while_somebody_looks_into_the_file_recording_is_put_off_and_made_up_for(folder: Folder) -> None:
    record, named = folder.begun()
    assert record.commit(barrier_of(named, 1, START))
    folder.error = StoreBusyError("the file", 42)
    assert not record.commit(barrier_of(named, 2, MIDDLE))
    folder.error = None
    assert folder.epoch() == 1
    assert record.commit(barrier_of(named, 3, MIDDLE))
    assert folder.told() == {0: (None, True, 5), 1: ((1, 9), False, 2), 2: (None, False, 0)}


def test_that_recording_is_put_off_is_said_once_until_it_succeeds(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    record, named = folder.begun()
    for number in (1, 3):
        folder.error = StoreBusyError("the file", 42)
        for _ in range(3):
            assert not record.commit(barrier_of(named, number, MIDDLE))
        assert caplog.text.count("progress is recorded later") == (number + 1) // 2
        folder.error = None
        assert record.commit(barrier_of(named, number + 1, MIDDLE))


@pytest.mark.parametrize("restarted", [False, True])
def test_a_backfill_that_ended_while_somebody_looked_is_finished_in_the_table_too(
    folder: Folder, restarted: bool
) -> None:
    record, named = folder.begun()
    record.commit(barrier_of(named, 1, MIDDLE))
    folder.error = StoreBusyError("the file", 42)
    assert not record.commit(barrier_of(named, 2, DONE))
    folder.error = None
    over = barrier_of(named, 3, OVER)
    if restarted:
        record = folder.process()
        adopt(record, over)
    assert record.commit(over)
    # How many rows the last batches read of each is known to nobody any more.
    assert folder.told() == {0: (None, True, 5), 1: (None, True, None), 2: (None, True, None)}


def test_a_directory_lost_after_the_backfill_says_that_all_vnodes_are_finished(folder: Folder) -> None:
    barrier = Barrier("1f0c9a77", (("slot", "s"),), Epoch(4, "p4", 4, 4), OVER)
    record = folder.process()
    adopt(record, barrier)
    assert record.commit(barrier)
    assert folder.told() == dict.fromkeys(range(3), (None, True, None))


def test_once_only_changes_are_followed_not_every_barrier_is_recorded(folder: Folder) -> None:
    record, named = folder.begun()
    assert record.commit(barrier_of(named, 1, DONE))
    assert record.commit(barrier_of(named, 2, OVER)), "the first of them always is"
    assert not record.commit(barrier_of(named, 3, OVER))
    folder.now += FOLLOW_INTERVAL
    assert record.commit(barrier_of(named, 4, OVER))
    assert folder.epoch() == 4
    assert record.commit(barrier_of(named, 5, OVER), at_once=True), "as when a query ends"
    assert folder.epoch() == 5


def test_each_barrier_at_which_rows_were_taken_again_is_recorded(folder: Folder) -> None:
    record, named = folder.begun()
    assert record.commit(barrier_of(named, 1, OVER))
    for number, rows in enumerate((3, 7), start=2):
        again = Again("request", Finished(1, rows))
        assert record.commit(replace(barrier_of(named, number, OVER), again=again))
    assert not record.commit(replace(barrier_of(named, 4, OVER), again=again))


def test_barriers_of_the_backfill_are_all_recorded_however_fast_they_come(folder: Folder) -> None:
    record, named = folder.begun()
    for number, progress in enumerate([START, START, MIDDLE, DONE], start=1):
        assert record.commit(barrier_of(named, number, progress))


def test_a_store_that_is_busy_at_the_start_is_worth_another_try(folder: Folder) -> None:
    folder.error = StoreBusyError("the file", 42)
    with pytest.raises(StateBusyError, match="the file"):
        folder.process().begin(folder.forgotten.append)


def test_a_store_that_is_damaged_is_an_error_of_the_state(folder: Folder) -> None:
    record, named = folder.begun()
    folder.error = StateDamagedError("the file", "no table of ours")
    with pytest.raises(StateError, match="the file"):
        record.commit(barrier_of(named, 1, START))
