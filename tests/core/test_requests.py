"""What a person asks of a stream from outside its process, as far as that can be judged without the database."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from backfill.command.requests import ask_again, ask_to_stop, require_batches
from backfill.command.status import status
from backfill.control import Control
from backfill.epoch import Epoch
from backfill.errors import KeyTextError, StateBusyError, StateError
from backfill.offset import Barrier, to_text
from backfill.progress import Again, CompletedRun, Finished, Frontier, Progress
from backfill.state_dir.control_file import keep_control, read_control
from backfill.state_dir.files import open_store
from backfill.state_dir.kept_options import ONLY_SNAPSHOT
from backfill.upstream import Bookmark
from backfill.vnode import WHOLE_TABLE
from backfill_state import Barrier as StoredBarrier
from backfill_state import StreamIdentity, duckdb_copy


def state_of(key: dict[str, pa.DataType], folder: Path, bookmark: Bookmark = ()) -> Path:
    """Makes the stateDir of a stream whose table has this key."""
    schema = pa.schema([pa.field(name, kind, nullable=False) for name, kind in key.items()])
    with open_store(folder) as store:
        store.begin(StreamIdentity("s1", "postgresql", "1", '"public"."t"', "1", schema, bookmark))
    return folder


@pytest.mark.parametrize(
    ("kind", "smaller", "greater"),
    [
        (pa.int64(), "9", "10"),
        (pa.int16(), "-2", "-1"),
        (pa.decimal128(6, 2), "9.5", "10"),
        (pa.date32(), "2026-09-30", "2026-10-01"),
        (pa.timestamp("us"), "2026-01-01 00:00:00", "9999-12-31 00:00:00.000001"),
        (pa.timestamp("us", tz="UTC"), "2026-01-01 02:00:00+02:00", "2026-01-01 01:00:00+00:00"),
        (pa.timestamp("us", tz="UTC"), "2026-01-01", "2026-01-01 01:00:00+00:00"),
    ],
    ids=str,
)
def test_a_range_that_ends_before_it_begins_is_refused(
    kind: pa.DataType, smaller: str, greater: str, tmp_path: Path
) -> None:
    state = state_of({"id": kind}, tmp_path)
    with pytest.raises(KeyTextError, match="the range ends before it begins"):
        ask_again(state, [greater], [smaller])
    assert read_control(tmp_path).requests == ()
    ask_again(state, [smaller], [greater])
    ask_again(state, [smaller], [smaller])
    ask_again(state, [greater], None)
    ask_again(state, None, [smaller])
    assert len(read_control(tmp_path).requests) == 4


def test_where_the_first_columns_are_equal_the_next_decide(tmp_path: Path) -> None:
    state = state_of({"a": pa.int32(), "b": pa.int32()}, tmp_path)
    with pytest.raises(KeyTextError, match="give the smaller key first"):
        ask_again(state, ("1", "9"), ("1", "2"))
    assert "the rows from" in ask_again(state, ("1", "2"), ("1", "9"))


@pytest.mark.parametrize(
    ("first", "last", "turned_round"),
    [
        (("2", "b", "1"), ("1", "a", "2"), True),
        (("1", "b", "2"), ("1", "b", "1"), True),
        (("1", "b", "2"), ("1", "a", "1"), False),
        (("1", "b", "2"), ("2", "a", "1"), False),
    ],
    ids=[
        "the first column decides",
        "the same text is the same value",
        "how texts are ordered the database knows",
        "in order",
    ],
)
def test_of_several_columns_the_first_that_differ_decide(
    first: tuple[str, ...], last: tuple[str, ...], turned_round: bool, tmp_path: Path
) -> None:
    state = state_of({"a": pa.int32(), "b": pa.string(), "c": pa.int32()}, tmp_path)
    if turned_round:
        with pytest.raises(KeyTextError, match="give the smaller key first"):
            ask_again(state, first, last)
    else:
        assert "the rows from" in ask_again(state, first, last)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.string(), "caf\udce9"),  # What Python makes of an argument that is not UTF-8.
        (pa.int64(), "\udce9"),
        (pa.string(), "a\0"),
        (pa.timestamp("us"), "2026-01-01 10:00:00+05:30"),
    ],
)
def test_a_text_that_is_no_value_of_the_key_is_refused(kind: pa.DataType, text: str, tmp_path: Path) -> None:
    with pytest.raises(KeyTextError, match=re.escape(f"for the key column id is not of its type, {kind}")):
        ask_again(state_of({"id": kind}, tmp_path), [text], None)
    assert read_control(tmp_path).requests == ()


@pytest.mark.parametrize("offset", ['{"version": 99}', "{", "{}"])
def test_an_offset_that_cannot_be_read_is_reported_as_that_of_the_state_directory(offset: str, tmp_path: Path) -> None:
    state = state_of({"id": pa.int64()}, tmp_path)
    with open_store(state) as store:
        store.commit(StoredBarrier(1, offset, store.progress()))
    with pytest.raises(StateError, match=r"the state directory holds an? .*delete backfill.duckdb and its .wal there"):
        status(state)


def test_rows_that_the_last_batch_may_have_given_up_are_not_read_once_somebody_asks_for_that(tmp_path: Path) -> None:
    state = state_of({"id": pa.int64()}, tmp_path)
    read = CompletedRun(0, WHOLE_TABLE, (6,))
    ends: tuple[Progress, ...] = Frontier((read,)), Finished(1, 6)
    for number, progress in enumerate(ends, start=1):
        barrier = Barrier("s1", (), Epoch(number, "p", 1, 1), Finished(1, 6), again=Again("asked", progress))
        with open_store(state) as store:
            store.commit(StoredBarrier(number, to_text(barrier), store.progress()))
        if isinstance(progress, Frontier):
            assert ask_to_stop(state) == "from the next batch on, no rows are read again"
            (tmp_path / "control.json").unlink()
    with pytest.raises(StateError, match="no rows are being read again, and no request waits"):
        ask_to_stop(state)


def test_a_request_waits_for_those_before_it_but_for_what_was_stopped(tmp_path: Path) -> None:
    state = state_of({"id": pa.int64()}, tmp_path)
    again = Again("asked", Frontier.at_start(()))
    barrier = Barrier("s1", (), Epoch(1, "p", 1, 1), Finished(1, 6), again=again)
    with open_store(state) as store:
        store.commit(StoredBarrier(1, to_text(barrier), store.progress()))
    assert ask_again(state, None, None).endswith("after 1 request that came before")
    assert ask_again(state, None, None).endswith("after 2 requests that came before")
    ask_to_stop(state)
    assert ask_again(state, None, None).endswith("from the next batch on")
    assert ask_again(state, None, None).endswith("after 1 request that came before")


@pytest.mark.parametrize("ask", [status, ask_to_stop, lambda folder: ask_again(folder, None, None)])
def test_a_folder_in_which_no_stream_has_begun_says_when_to_try_again(
    ask: Callable[[Path], object], tmp_path: Path
) -> None:
    with open_store(tmp_path) as store:
        store.reset()
    with pytest.raises(StateError, match=r"has no stream yet; try again when the query has begun$"):
        ask(tmp_path)


def test_a_stream_whose_state_is_written_all_the_time_may_be_held_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = state_of({"id": pa.int64()}, tmp_path)
    monkeypatch.setattr(duckdb_copy, "PATIENCE", 0.1)
    monkeypatch.setattr(duckdb_copy, "_at_rest", lambda _: False)
    with pytest.raises(StateBusyError):
        status(folder)
    require_batches(folder)


@pytest.mark.parametrize(("bookmark", "shown"), [((), True), (((ONLY_SNAPSHOT, "true"),), False)])
def test_what_the_stream_before_it_was_told_is_not_shown_of_one_batch(
    tmp_path: Path, bookmark: Bookmark, *, shown: bool
) -> None:
    folder = state_of({"id": pa.int64()}, tmp_path, bookmark)
    keep_control(folder, Control(paused=True))
    assert status(folder).control.paused is shown
