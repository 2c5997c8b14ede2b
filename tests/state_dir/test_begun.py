"""The state directory when a query begins: of a new checkpoint or of one that goes on, empty, matching or another's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill.epoch import Epoch
from backfill.errors import StateError
from backfill.offset import Barrier, from_text
from backfill.options import LastRowsOptions, OnExistingState, StartupMode
from tests.state_dir.folder import DONE, MIDDLE, ROWS_IN_THE_MIDDLE, ROWS_WHEN_DONE, START, Folder, Upstream, adopt


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
    assert folder.stored_rows() == {}


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


def test_a_directory_of_this_stream_is_brought_up_to_date(folder: Folder) -> None:
    barrier = folder.recorded(4, MIDDLE)
    record = folder.process()
    later = replace(barrier, epoch=Epoch(6, "p6", 6, 6), progress=DONE)
    assert adopt(record, barrier) == barrier.bookmark
    assert record.commit(later)
    assert folder.epoch() == 6
    assert folder.stored_rows() == ROWS_WHEN_DONE


def test_a_directory_that_is_behind_is_brought_up_to_date(folder: Folder) -> None:
    barrier = folder.recorded(4, START)
    later = replace(barrier, epoch=Epoch(9, "p9", 9, 9), progress=MIDDLE)
    record = folder.process()
    adopt(record, later)
    assert record.commit(later)
    assert folder.stored_rows() == ROWS_IN_THE_MIDDLE


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
    assert folder.stored_rows() == ROWS_IN_THE_MIDDLE


def test_a_directory_of_another_stream_is_refused(folder: Folder) -> None:
    barrier = folder.recorded(4)
    other = replace(barrier, stream="other000")
    with pytest.raises(StateError, match=f"belongs to stream other000, and stateDir to stream {barrier.stream}"):
        adopt(folder.process(), other)


def test_a_directory_that_is_ahead_is_refused_with_both_epochs(folder: Folder) -> None:
    barrier = folder.recorded(9)
    older = replace(barrier, epoch=Epoch(4, "p4", 4, 4))
    with pytest.raises(StateError, match="checkpoint is at epoch 4 and stateDir at epoch 9: an older checkpoint"):
        adopt(folder.process(), older)


@pytest.mark.parametrize(
    ("upstream", "reason"),
    [
        (Upstream(system="elsewhere"), "followed system system, and the options lead to system elsewhere"),
        (Upstream(table_id="2"), r"table public.t was dropped and made again .* had the id 1, and now has 2\)"),
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
