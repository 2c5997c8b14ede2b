"""Batches that are run again after the table was given other rows or other columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.schema import Field, PrimitiveType

from backfill.command.requests import ask_again
from backfill.errors import SchemaChangedError
from tests.delta.laboratory import FEED
from tests.delta.stream import DeltaRun
from tests.delta.tables import all_read, half_read, rows


def test_a_batch_that_was_planned_before_a_column_was_given_another_type_is_not_cast(tmp_path: Path) -> None:
    folder = tmp_path / "retyped"
    write_deltalake(folder, pa.table({"id": [1], "v": [1.5]}), configuration=FEED)
    run = DeltaRun(tmp_path, folder)
    assert run.plan()
    write_deltalake(folder, pa.table({"id": [1], "v": [1]}), mode="overwrite", schema_mode="overwrite")
    run.restart()
    with pytest.raises(SchemaChangedError, match=r"version 0 of .* but column v got another type since"):
        run.read()


@pytest.mark.parametrize("only", ["", "id >= 0"], ids=["all rows", "filtered"])
def test_a_logged_batch_is_read_without_the_column_that_its_version_does_not_have(
    tmp_path: Path, table: Path, only: str
) -> None:
    run = DeltaRun(tmp_path, table, options={"vnodeCount": "3", "numPartitions": "1", "snapshotFilter": only})
    assert run.plan(5)
    DeltaTable(table).alter.add_columns([Field("w", PrimitiveType("integer"))])
    DeltaTable(table).update(updates={"w": "id"})
    run.restart()
    found = run.read()
    assert {(row["v"][:1], row["w"]) for row in found} == {("v", None)}
    run.fold.apply(found)
    run.committed += 1
    run.catch_up()
    assert {row["w"] for row in run.fold.rows.values()} == set(range(10))


@pytest.mark.parametrize("when", ["after it was planned", "before it was planned", "long before"])
@pytest.mark.parametrize("changelog", ["logged", "full"])
def test_a_batch_that_was_staged_without_a_column_that_was_added_is_run_again_without_it(
    tmp_path: Path, table: Path, changelog: str, when: str
) -> None:
    """This holds whenever the column was added: the process that staged the batch did not carry it."""

    def add() -> None:
        DeltaTable(table).alter.add_columns([Field("w", PrimitiveType("integer"))])
        DeltaTable(table).update(updates={"w": "id"}, predicate="id = 9")

    run = DeltaRun(tmp_path, table, options={"vnodeCount": "1", "changelog": changelog})
    run.batch(1)
    if when == "long before":
        add()
    run.batch(1)
    DeltaTable(table).update(updates={"v": "'new'"}, predicate="id < 3")
    if when == "before it was planned":
        add()
    assert run.plan(3)
    before = run.read()
    if when == "after it was planned":
        add()
    run.restart()
    again = run.read()
    assert again == [{**row, "w": None} for row in before]
    run.fold.apply(again)
    run.committed += 1
    run.catch_up()
    assert {key: row["v"] for (key,), row in run.fold.rows.items()} == dict(all_of(table, "v"))


@pytest.mark.parametrize("changelog", ["logged", "full"])
def test_a_stream_that_is_started_again_has_no_batch_of_its_own(tmp_path: Path, table: Path, changelog: str) -> None:
    """A batch of its own is due only where the last rows get other columns."""
    run = DeltaRun(tmp_path, table, options={"changelog": changelog})
    run.catch_up()
    write_deltalake(table, rows((20, "new")), mode="append")
    run.catch_up()
    run.restart()
    assert not run.batch()


def all_of(table: Path, column: str) -> list[tuple[Any, Any]]:
    found = DeltaTable(table).to_pyarrow_table()
    return list(zip(found["id"].to_pylist(), found[column].to_pylist(), strict=True))


def test_a_batch_that_is_run_again_reads_the_version_it_was_planned_at(tmp_path: Path, table: Path) -> None:
    run = half_read(tmp_path, table)
    assert run.plan(5)
    run.restart()
    write_deltalake(table, rows((1, "v1")), mode="overwrite")
    run.batch(5)
    assert run.fold.counts == {"insert": 10}, "each row as it was in the version planned"
    run.catch_up()
    assert all(not run.barrier(number).ahead for number in range(1, run.committed + 1))


def test_rows_that_are_taken_again_are_read_after_a_crash_at_the_version_planned(tmp_path: Path, table: Path) -> None:
    run = all_read(tmp_path, table)
    ask_again(tmp_path / "state", None, None)
    assert run.plan()
    run.restart()
    DeltaTable(table).delete("id < 5")
    assert sorted(row["id"] for row in run.read()) == list(range(10))
