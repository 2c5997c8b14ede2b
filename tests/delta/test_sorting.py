"""Few rows are sorted in memory and many by runs on disk; both come out the same, wherever batches end."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from backfill.arrow.order import sorting_by
from backfill.errors import DataLossError, StagingError
from backfill.upstream.delta.keys import sorting
from backfill.upstream.delta.keys.sorting import in_order
from tests.delta.laboratory import vacuum
from tests.delta.stream import DeltaRun
from tests.delta.test_types import ORDERED, OTHER
from tests.delta.writers import COLUMNS, Writer, make
from tests.full_disk import room_for

EACH_ROW = 0
"""The size of a run, or of a block, with which each row is one."""


def everything() -> pa.Table:
    """Returns values of every type, a column for each, and numbers in no order."""
    columns = {
        name: pa.array([*values, *[None] * 20][:20], kind) for name, (kind, values) in {**ORDERED, **OTHER}.items()
    }
    return pa.table({**columns, "n": Random(1).sample(range(100), 20)})


@pytest.mark.parametrize("block", [EACH_ROW, sorting.BLOCK_BYTES], ids=["blocks of a row", "one block"])
@pytest.mark.parametrize("run", [EACH_ROW, sorting.RUN_BYTES], ids=["on disk", "in memory"])
def test_rows_of_every_type_come_out_as_they_went_in(monkeypatch: pytest.MonkeyPatch, run: int, block: int) -> None:
    monkeypatch.setattr(sorting, "RUN_BYTES", run)
    monkeypatch.setattr(sorting, "BLOCK_BYTES", block)
    table = everything()
    found = pa.Table.from_batches(in_order(table.to_batches(3), table.schema, ["n"]), table.schema)
    assert repr(found.to_pylist()) == repr(table.sort_by("n").to_pylist())
    for name, (kind, values) in ORDERED.items():
        rows = pa.table({"k": pa.array(values[::-1], kind)})
        assert pa.Table.from_batches(in_order(rows.to_batches(), rows.schema, ["k"]))["k"].to_pylist() == values, name


ROWS = st.lists(st.tuples(st.integers(0, 9), st.text("ab", max_size=2), st.binary(max_size=400)), max_size=60)


@given(rows=ROWS, data=st.data())
def test_rows_are_in_order_whatever_lies_in_memory(rows: list[tuple[int, str, bytes]], data: st.DataObject) -> None:
    columns: list[pa.Array[Any]] = [
        pa.array([row[at] for row in rows], kind) for at, kind in enumerate([pa.int64(), pa.string(), pa.binary()])
    ]
    table = pa.table(columns, names=["a", "b.c", "wide"])
    sizes = st.sampled_from([EACH_ROW, 50, 900, 5_000, 1 << 20])
    with pytest.MonkeyPatch.context() as patch:
        for name in ("RUN_BYTES", "BLOCK_BYTES", "BATCH_BYTES"):
            patch.setattr(sorting, name, data.draw(sizes, label=name))
        patch.setattr(sorting, "MOST_RUNS", data.draw(st.sampled_from([2, 3, 64]), label="MOST_RUNS"))
        batches = table.to_batches(data.draw(st.integers(1, 20), label="rows of a batch"))
        found = list(in_order(batches, table.schema, ["a", "b.c"]))
    assert all(batch.num_rows for batch in found)
    together = pa.Table.from_batches(found, table.schema)
    assert together.select(["a", "b.c"]) == table.sort_by(sorting_by(["a", "b.c"])).select(["a", "b.c"])
    assert sorted(map(str, together.to_pylist())) == sorted(map(str, table.to_pylist()))


def test_rows_of_many_columns_do_not_come_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch costs by its columns, whatever a block on disk has of them; rows of few large columns come singly."""
    monkeypatch.setattr(sorting, "RUN_BYTES", EACH_ROW)
    monkeypatch.setattr(sorting, "BLOCK_BYTES", EACH_ROW)
    many = pa.table({"n": range(20), **{f"c{number}": [number] * 20 for number in range(300)}})
    few = pa.table({"n": range(20), "text": ["x" * 50_000] * 20})
    for table, batches in ((many, 1), (few, 20)):
        found = list(in_order(table.to_batches(3), table.schema, ["n"]))
        assert len(found) == batches
        assert pa.Table.from_batches(found) == table


def test_runs_leave_nothing_on_disk_and_a_full_disk_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(sorting, "RUN_BYTES", 1_000)
    table = pa.table({"n": Random(1).sample(range(10_000), 10_000)})
    found = in_order(table.to_batches(100), table.schema, ["n"])
    assert next(found)["n"][0].as_py() == 0
    assert list(tmp_path.iterdir())
    assert isinstance(found, Generator)
    found.close()
    assert list(tmp_path.iterdir()) == []
    with room_for(300), pytest.raises(StagingError, match=rf"temporary folder {tmp_path}.*TMPDIR"):
        list(in_order(table.to_batches(100), table.schema, ["n"]))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("few", "batch"), [(EACH_ROW, 32_768), (sorting.RUN_BYTES, 1), (sorting.RUN_BYTES, 3)])
def test_changes_are_the_same_wherever_a_batch_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, few: int, batch: int
) -> None:
    monkeypatch.setattr(sorting, "RUN_BYTES", few)
    monkeypatch.setattr(sorting, "BATCH_ROWS", batch)
    make(tmp_path / "table", 30)
    run = DeltaRun(tmp_path, tmp_path / "table", options={"vnodeCount": "3"})
    writer = Writer(tmp_path / "table", Random(batch))
    for _ in range(6):
        run.batch(20)
        writer.write()
        writer.overwrite(DeltaTable(tmp_path / "table"))
    run.catch_up()
    assert run.fold.counts["update_postimage"] > 3


def test_an_error_of_the_rows_passes_through(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sorting, "RUN_BYTES", EACH_ROW)
    make(tmp_path / "table", 30)
    run = DeltaRun(tmp_path, tmp_path / "table")
    run.catch_up()
    for _ in range(2):
        write_deltalake(tmp_path / "table", COLUMNS.empty_table(), mode="overwrite")
    vacuum(tmp_path / "table")
    assert run.plan()
    with pytest.raises(DataLossError, match="VACUUM has removed them"):
        run.read()
