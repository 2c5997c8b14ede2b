"""What a person has told a stream: what follows from it, and the file it is kept in."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill.control import Control, PendingRequests, ReadAgain, Stop
from backfill.errors import StateError
from backfill.state_dir.control_file import FILE, LOCK, changing, keep_control, read_control

names = st.sampled_from(["a", "b", "c", "d", "e"])
keys = st.none() | st.tuples(st.text(max_size=3), st.text(max_size=3))
requests = st.builds(ReadAgain, names, st.sampled_from(["s1", "s2"]), keys, keys) | st.builds(
    Stop, names, st.just("s1")
)
controls = st.builds(
    Control,
    paused=st.booleans(),
    max_rows=st.none() | st.integers(0, 1 << 62),
    requests=st.lists(requests, max_size=4, unique_by=lambda request: request.id).map(tuple),
)


@given(controls, st.integers(1, 1 << 62))
def test_a_batch_reads_nothing_while_held_and_never_more_than_either_limit(control: Control, budget: int) -> None:
    rows = control.rows_of(budget)
    assert (rows == 0) == control.holds
    assert rows <= budget
    assert control.max_rows is None or rows <= control.max_rows


@given(controls)
def test_resuming_always_goes_on_and_keeps_a_limit_that_lets_it(control: Control) -> None:
    assert not control.resumed().holds
    assert control.paused_too().holds
    assert control.paused_too().resumed() == control.resumed()
    if control.max_rows:
        assert control.resumed().max_rows == control.max_rows


def test_all_that_it_was_told_is_shown() -> None:
    assert Control(paused=True, max_rows=3).summary() == "paused, throttled to 3 rows a batch"
    assert Control(max_rows=0).summary() == "throttled to 0 rows a batch"
    assert (Control(paused=True).summary(), Control().summary()) == ("paused", "")


@given(controls)
def test_what_lets_go_or_changes_nothing_holds_nothing_up(control: Control) -> None:
    assert not control.resumed().holds_up_more(control)
    assert not control.throttled(None).holds_up_more(control)
    assert control.paused_too().holds_up_more(control) == (not control.holds)
    assert Control(max_rows=3).holds_up_more(Control(max_rows=4))


@given(controls)
def test_holding_and_slowing_down_keeps_what_was_asked_for(control: Control) -> None:
    for changed in (control.resumed(), control.paused_too(), control.throttled(3)):
        assert changed.requests == control.requests


def test_requests_wait_in_their_order_until_they_are_taken_up() -> None:
    one, two, three = (ReadAgain(name, "s1", (name,)) for name in "abc")
    control = Control().asked(one, None).asked(two, None).asked(ReadAgain("x", "s2"), None)
    assert control.requests == (ReadAgain("x", "s2"),), "those of a stream that is no more are forgotten"
    control = Control().asked(one, None).asked(two, None).asked(three, "a")
    assert control.pending("s1", None) == PendingRequests(None, (one, two, three))
    assert control.pending("s1", "b") == PendingRequests(None, (three,))
    assert not control.pending("s1", "c")
    assert control.pending("s1", "of a file that was lost") == PendingRequests(None, (one, two, three))
    assert not control.pending("s2", None)
    four = ReadAgain("d", "s1")
    assert control.asked(four, "b").requests == (two, three, four), "what is done is forgotten, save the last"


def test_a_stop_ends_all_that_came_before_it() -> None:
    one, two = ReadAgain("a", "s1"), ReadAgain("b", "s1", ("1",), ("2",))
    former, stop = Stop("w", "s1"), Stop("x", "s1")
    control = Control(requests=(former, one, stop, two))
    assert control.pending("s1", None) == control.pending("s1", "a") == PendingRequests(stop, (two,))
    assert control.pending("s1", "x") == PendingRequests(None, (two,))


@given(controls)
def test_what_is_written_is_read(control: Control) -> None:
    assert Control.from_text(control.to_text()) == control


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[1]",
        '{"version":1}',
        '{"version":true,"paused":true,"max_rows":null}',
        '{"version":1,"paused":1,"max_rows":null}',
        '{"version":1,"paused":true,"max_rows":-1}',
        '{"version":1,"paused":true,"max_rows":"9"}',
        '{"version":1,"paused":true,"max_rows":null,"more":0}',
        '{"version":2,"paused":true,"max_rows":null}',
        '{"version":2,"paused":true,"max_rows":null,"requests":[]}',
        '{"version":1,"paused":true,"max_rows":null,"requests":[{"id":"a","stream":"s","first":null,"last":null}]}',
        '{"version":2,"paused":true,"max_rows":null,"requests":[{"id":"a","stream":"s","first":null}]}',
        '{"version":2,"paused":true,"max_rows":null,"requests":[{"id":"a","stream":"s","stop":false}]}',
    ],
)
def test_a_damaged_file_ends_the_stream_and_is_not_taken_for_go_on(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(StateError, match="damaged control file"):
        read_control(tmp_path)


def test_the_file_is_replaced_as_a_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    assert read_control(tmp_path) == Control()
    for control in (Control(paused=True), Control(max_rows=3)):
        keep_control(tmp_path, control)
        assert read_control(tmp_path) == control
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    assert json.loads((tmp_path / FILE).read_text())["version"] == 1


def test_the_file_and_then_its_name_are_made_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[bool, bool]] = []

    def sync(descriptor: int) -> None:
        synced.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), (tmp_path / FILE).exists()))

    monkeypatch.setattr(os, "fsync", sync)
    keep_control(tmp_path, Control(paused=True))
    assert synced == [(False, False), (True, True)]


def test_nothing_is_left_of_a_change_that_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    keep_control(tmp_path, Control(max_rows=3))
    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        keep_control(tmp_path, Control(paused=True))
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    assert read_control(tmp_path) == Control(max_rows=3)


def test_a_file_system_that_makes_no_names_durable_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", sync)
    keep_control(tmp_path, Control(paused=True))
    assert read_control(tmp_path) == Control(paused=True)


def test_a_file_system_whose_files_belong_to_another_account_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a volume that is mounted as root's, all accounts may write, but only root may change who may read."""

    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refused)
    with changing(tmp_path):
        keep_control(tmp_path, Control(paused=True))
    assert read_control(tmp_path) == Control(paused=True)


def test_what_one_account_has_locked_another_may_lock_next(tmp_path: Path) -> None:
    with changing(tmp_path):
        pass
    assert (tmp_path / LOCK).stat().st_mode & 0o777 == 0o666


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"control\.json cannot be written"):
        keep_control(tmp_path / "nowhere", Control())
    (tmp_path / FILE).mkdir()
    with pytest.raises(StateError, match=r"control\.json cannot be written"):
        keep_control(tmp_path, Control())
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    with pytest.raises(StateError, match=r"control\.json cannot be read: .*give this process's account access"):
        read_control(tmp_path)


def test_a_file_that_is_no_text_is_damaged(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"\xff")
    with pytest.raises(StateError, match=r"damaged control file .* delete it"):
        read_control(tmp_path)
