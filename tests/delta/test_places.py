"""How a stream over a Delta table recognises its place: by the order of its keys, and the history of the table."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from backfill.errors import DataLossError, OffsetError, SchemaChangedError
from backfill.upstream.recent_lag import RecentLag
from tests.delta.laboratory import FEED, clean_up
from tests.delta.stream import DeltaRun


@pytest.fixture
def run(tmp_path: Path) -> DeltaRun:
    """A stream in mid-backfill, on a table where one column of the key grows as the other one falls."""
    columns = {"a": range(90), "b": range(90, 0, -1), "v": ["x"] * 90}
    write_deltalake(tmp_path / "table", pa.table(columns), configuration=FEED)
    run = DeltaRun(tmp_path, tmp_path / "table", ("a", "b"), {"vnodeCount": "3", "numPartitions": "1"})
    run.batch(20)
    assert not run.backfilled
    return run


def without_state_dir(run: DeltaRun) -> None:
    run.restart()
    shutil.rmtree(run.folder / "state")


def test_key_columns_in_another_order_end_the_backfill_and_may_be_set_back(run: DeltaRun) -> None:
    without_state_dir(run)
    run.key = ("b", "a")
    with pytest.raises(
        SchemaChangedError, match=r"\(b int64, a int64\).* and were \(a int64, b int64\).*Set keyColumns"
    ):
        run.plan()
    run.restart()
    run.key = ("a", "b")
    run.catch_up()
    assert run.backfilled


def test_a_checkpoint_without_the_order_of_keys_is_refused(run: DeltaRun) -> None:
    without_state_dir(run)
    noted = json.loads(run.offsets[0])
    del noted["upstream"]["key"]
    run.offsets = [json.dumps(noted, separators=(",", ":"))]
    with pytest.raises(OffsetError, match=r"does not say its key: .*Start over"):
        run.catch_up()


def test_after_the_backfill_the_key_may_be_in_another_order(run: DeltaRun) -> None:
    run.catch_up()
    without_state_dir(run)
    run.key = ("b", "a")
    DeltaTable(run.table).update(updates={"v": "'y'"}, predicate="a < 5")
    assert run.plan()
    assert json.loads(run.offsets[-1])["upstream"]["key"] == "b int64, a int64"
    assert len(run.read()) == 10


def test_after_the_backfill_a_key_of_other_columns_is_refused_though_the_state_directory_is_lost(run: DeltaRun) -> None:
    """A row that only moves by the old key would come as an update; a sink that goes by the old key would keep both."""
    run.catch_up()
    without_state_dir(run)
    run.key = ("b",)
    with pytest.raises(SchemaChangedError, match=r"\(b int64\).* and were \(a int64, b int64\).*Set keyColumns"):
        run.plan()
    run.restart()
    run.key = ("a", "b")
    run.catch_up()


# -- the history -----------------------------------------------------------------------------------------------------


def put_back_after_a_batch(run: DeltaRun, tmp_path: Path, *, restarts: bool) -> None:
    """Replaces the table by a copy that lacks the last version that the stream has read."""
    copy = shutil.copytree(run.table, tmp_path / "copy")
    DeltaTable(run.table).update(updates={"v": "'lost'"}, predicate="a = 1")
    run.catch_up()
    if restarts:
        run.restart()
    shutil.rmtree(run.table)
    copy.rename(run.table)


@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
def test_an_older_copy_is_reported_before_it_is_written_to(run: DeltaRun, tmp_path: Path, *, restarts: bool) -> None:
    put_back_after_a_batch(run, tmp_path, restarts=restarts)
    with pytest.raises(DataLossError, match=r"has read version 1 .* ends with version 0: an older copy"):
        run.plan()


@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
def test_an_older_copy_that_was_written_to_is_reported(run: DeltaRun, tmp_path: Path, *, restarts: bool) -> None:
    put_back_after_a_batch(run, tmp_path, restarts=restarts)
    for key in (2, 3):
        DeltaTable(run.table).update(updates={"v": "'other'"}, predicate=f"a = {key}")
    when = r"was committed at 20[-\dT:.]+ UTC"
    with pytest.raises(
        DataLossError,
        match=rf"has read version 1 .*, which {when}, and .* {when}: .* restored and written to",
    ):
        run.plan()


def test_commits_that_were_only_looked_at_may_be_replaced_by_others(
    run: DeltaRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The figures were taken of a version that the stream has not read; then another version takes its place."""
    run.catch_up()
    copy = shutil.copytree(run.table, tmp_path / "copy")
    DeltaTable(run.table).update(updates={"v": "'lost'"}, predicate="a = 1")
    monkeypatch.setattr(RecentLag, "lag", lambda _, _position, look: look())
    assert run.stream().report()["lag_versions"] == 1
    shutil.rmtree(run.table)
    copy.rename(run.table)
    DeltaTable(run.table).update(updates={"v": "'other'"}, predicate="a = 2")
    run.catch_up()
    assert run.version == 1


def test_a_batch_is_not_reported_as_far_behind_as_the_one_before_it(run: DeltaRun) -> None:
    run.catch_up()
    for key in (1, 2):
        DeltaTable(run.table).update(updates={"v": "'changed'"}, predicate=f"a = {key}")
    behind = []
    while run.batch(1):
        behind.append(run.stream().report()["lag_versions"])
    assert behind == [1, 0]


@pytest.mark.parametrize("dated", [True, False], ids=["", "commits that do not say their time"])
def test_a_copy_of_the_table_as_it_is_goes_on(run: DeltaRun, tmp_path: Path, *, dated: bool) -> None:
    """The copy's files have other times, as after `cp` or from an object store."""
    DeltaTable(run.table).update(updates={"v": "'y'"}, predicate="a = 1")
    for commit in (run.table / "_delta_log").glob("*.json"):
        if not dated:
            actions = [line for line in commit.read_text().splitlines() if "commitInfo" not in line]
            commit.write_text("\n".join(actions))
    run.catch_up()
    run.restart()
    copy = shutil.copytree(run.table, tmp_path / "copy")
    for file in (copy / "_delta_log").iterdir():
        os.utime(file, (1, 1))
    shutil.rmtree(run.table)
    copy.rename(run.table)
    DeltaTable(run.table).update(updates={"v": "'z'"}, predicate="a = 2")
    run.catch_up()
    assert run.version == 2


def test_a_version_that_the_log_no_longer_has_is_taken_for_the_same(run: DeltaRun) -> None:
    run.catch_up()
    run.restart()
    DeltaTable(run.table).update(updates={"v": "'z'"}, predicate="a = 2")
    clean_up(run.table, keep=1)
    run.catch_up()
    assert run.version == 1
