"""Many rows are put in order by DuckDB and few by Arrow, and both come out the same, wherever batches end."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from backfill.errors import DataLossError
from backfill.upstream.delta import sorting
from backfill.upstream.delta.sorting import in_order
from tests.delta.laboratory import vacuum
from tests.delta.stream import DeltaRun
from tests.delta.test_types import ORDERED, OTHER
from tests.delta.writers import COLUMNS, Writer, make

BY_DUCKDB = 0


def everything() -> pa.Table:
    """Values of every type, a column for each, and numbers in no order."""
    columns = {
        name: pa.array([*values, *[None] * 20][:20], kind) for name, (kind, values) in {**ORDERED, **OTHER}.items()
    }
    return pa.table({**columns, "n": Random(1).sample(range(100), 20)})


@pytest.mark.parametrize("few", [BY_DUCKDB, sorting.FEW_BYTES], ids=["by DuckDB", "by Arrow"])
def test_rows_of_every_type_come_out_as_they_went_in(monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    monkeypatch.setattr(sorting, "FEW_BYTES", few)
    table = everything()
    found = pa.Table.from_batches(in_order(table.to_batches(3), table.schema, ["n"]), table.schema)
    assert repr(found.to_pylist()) == repr(table.sort_by("n").to_pylist())
    for name, (kind, values) in ORDERED.items():
        rows = pa.table({"k": pa.array(values[::-1], kind)})
        assert pa.Table.from_batches(in_order(rows.to_batches(), rows.schema, ["k"]))["k"].to_pylist() == values, name


@pytest.mark.parametrize(("few", "batch"), [(BY_DUCKDB, 32_768), (sorting.FEW_BYTES, 1), (sorting.FEW_BYTES, 3)])
def test_changes_are_the_same_wherever_a_batch_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, few: int, batch: int
) -> None:
    monkeypatch.setattr(sorting, "FEW_BYTES", few)
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


def test_an_error_passes_through_duckdb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sorting, "FEW_BYTES", BY_DUCKDB)
    make(tmp_path / "table", 30)
    run = DeltaRun(tmp_path, tmp_path / "table")
    run.catch_up()
    for _ in range(2):
        write_deltalake(tmp_path / "table", COLUMNS.empty_table(), mode="overwrite")
    vacuum(tmp_path / "table")
    assert run.plan()
    with pytest.raises(DataLossError, match="VACUUM has removed them"):
        run.read()
