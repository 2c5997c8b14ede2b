"""What a stream over a Delta table knows its place by, where `stateDir` was lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from backfill.errors import SchemaChangedError
from tests.delta.laboratory import FEED
from tests.delta.stream import DeltaRun


@pytest.fixture
def run(tmp_path: Path) -> DeltaRun:
    """In mid-backfill; one column of the key grows where the other one falls."""
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


def test_a_stream_that_began_before_the_key_was_noted_goes_on(run: DeltaRun) -> None:
    without_state_dir(run)
    noted = json.loads(run.offsets[0])
    del noted["upstream"]["key"]
    run.offsets = [json.dumps(noted, separators=(",", ":"))]
    run.catch_up()
    assert run.backfilled


def test_after_the_backfill_the_key_may_be_in_another_order(run: DeltaRun) -> None:
    run.catch_up()
    without_state_dir(run)
    run.key = ("b", "a")
    DeltaTable(run.table).update(updates={"v": "'y'"}, predicate="a < 5")
    assert run.plan()
    assert json.loads(run.offsets[-1])["upstream"]["key"] == "b int64, a int64"
    assert len(run.read()) == 10
