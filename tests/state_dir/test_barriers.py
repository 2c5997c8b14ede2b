"""Which barriers are recorded in the state directory, and what it then says of each vnode."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill.epoch import Epoch
from backfill.errors import StateBusyError, StateError
from backfill.offset import Barrier
from backfill.progress import Again, Finished
from backfill.state_dir.record import FOLLOW_INTERVAL
from backfill_state import StateBusyError as StoreBusyError
from backfill_state import StateDamagedError
from tests.state_dir.folder import (
    DONE,
    MIDDLE,
    OVER,
    ROWS_IN_THE_MIDDLE,
    ROWS_WHEN_DONE,
    START,
    Folder,
    adopt,
    barrier_of,
)


def test_a_barrier_names_only_the_vnodes_that_moved(folder: Folder) -> None:
    record, named = folder.begun()
    record.commit(barrier_of(named, 1, START))
    record.commit(barrier_of(named, 2, MIDDLE))
    assert folder.stored_rows() == ROWS_IN_THE_MIDDLE
    record.commit(barrier_of(named, 3, DONE))
    record.commit(barrier_of(named, 4, OVER))
    assert folder.stored_rows() == ROWS_WHEN_DONE
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
    assert folder.stored_rows() == ROWS_WHEN_DONE


def test_recording_a_barrier_again_does_not_open_the_file(folder: Folder) -> None:
    record, named = folder.begun()
    barrier = barrier_of(named, 1, MIDDLE)
    assert record.commit(barrier)
    opened = folder.opened
    assert record.commit(barrier)
    assert folder.opened == opened


def test_recording_the_same_barrier_in_a_new_process_changes_nothing(folder: Folder) -> None:
    barrier = folder.recorded(4)
    before = folder.stored_rows()
    record = folder.process()
    adopt(record, barrier)
    assert record.commit(barrier)
    assert (folder.stored_rows(), folder.epoch()) == (before, 4)


def test_while_somebody_looks_into_the_file_recording_is_put_off_and_made_up_for(folder: Folder) -> None:
    record, named = folder.begun()
    assert record.commit(barrier_of(named, 1, START))
    folder.error = StoreBusyError("the file", 42)
    assert not record.commit(barrier_of(named, 2, MIDDLE))
    folder.error = None
    assert folder.epoch() == 1
    assert record.commit(barrier_of(named, 3, MIDDLE))
    assert folder.stored_rows() == ROWS_IN_THE_MIDDLE


def test_that_recording_is_put_off_is_reported_once_until_it_succeeds(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    record, named = folder.begun()
    for number in (1, 3):
        folder.error = StoreBusyError("the file", 42)
        for _ in range(3):
            assert not record.commit(barrier_of(named, number, MIDDLE))
        assert caplog.text.count("progress could not be recorded yet") == (number + 1) // 2
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
    # Nobody knows any more how many rows of each vnode the last batches read.
    assert folder.stored_rows() == {0: (None, True, 5), 1: (None, True, None), 2: (None, True, None)}


def test_a_directory_lost_after_the_backfill_says_that_all_vnodes_are_finished(folder: Folder) -> None:
    barrier = Barrier("1f0c9a77", (("slot", "s"),), Epoch(4, "p4", 4, 4), OVER)
    record = folder.process()
    adopt(record, barrier)
    assert record.commit(barrier)
    assert folder.stored_rows() == dict.fromkeys(range(3), (None, True, None))


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
