"""What a stream has been told: what follows from it, and the file it is kept in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill.control import Control
from backfill.control_file import FILE, keep_control, read_control
from backfill.errors import StateError

controls = st.builds(Control, paused=st.booleans(), max_rows=st.none() | st.integers(0, 1 << 62))


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


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"control\.json cannot be written"):
        keep_control(tmp_path / "nowhere", Control())
    (tmp_path / FILE).mkdir()
    with pytest.raises(StateError, match=r"control\.json cannot be written"):
        keep_control(tmp_path, Control())
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    with pytest.raises(StateError, match=r"control\.json cannot be read"):
        read_control(tmp_path)
