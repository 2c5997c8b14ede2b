"""Files that are removed from a partitioned table, or from one that was partitioned in between."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.schema import Field, PrimitiveType

from backfill.errors import TableError
from tests.delta import vectors
from tests.delta.laboratory import FEED, clean_up
from tests.delta.stream import DeltaRun


def test_a_removed_file_without_its_partition_is_refused(tmp_path: Path) -> None:
    """The protocol lets a writer leave the partition out."""
    table = tmp_path / "table"
    write_deltalake(table, pa.table({"id": [1, 2], "p": ["x", "y"]}), partition_by=["p"], configuration=FEED)
    run = DeltaRun(tmp_path, table)
    run.catch_up()
    [file] = table.glob("p=x/*")
    gone = {"path": str(file.relative_to(table)), "dataChange": True}
    vectors.commit(table, [{"commitInfo": {"timestamp": 1}}, {"remove": gone}])
    assert run.plan()
    with pytest.raises(TableError, match=r"version 1 of .* does not say its value of the partition column p"):
        run.read()
    run.restart(columns="id")
    assert [row["id"] for row in run.read()] == [1]


def forget_partitions(table: Path) -> None:
    """Makes the latest commit leave out the partitions of the files that it removes."""
    log = table / "_delta_log" / f"{DeltaTable(table).version():020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "remove" in action:
            del action["remove"]["partitionValues"]
    log.write_text("\n".join(map(json.dumps, actions)))


def replaced(table: Path, rows: pa.Table, by: list[str]) -> None:
    """Overwrites the table with these rows, partitioned so, in a commit that names no partitions of removed files."""
    write_deltalake(table, rows, mode="overwrite", schema_mode="overwrite", partition_by=by, configuration=FEED)
    forget_partitions(table)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_removed_file_is_of_the_partitions_from_before_its_commit(tmp_path: Path, *, restarted: bool) -> None:
    """The partitioning of the table in the end, or when the stream was opened, says nothing of that file."""
    table = tmp_path / "table"
    before = pa.table({"id": [1, 2], "p": ["x", "y"]})
    write_deltalake(table, before, partition_by=["p"], configuration=FEED)
    run = DeltaRun(tmp_path, table)
    run.catch_up()
    replaced(table, before, [])
    if restarted:
        run.restart()
    message = r"version 1 of .* does not say its value of the partition column p"
    assert run.plan()
    with pytest.raises(TableError, match=message):
        run.read()
    DeltaTable(table).delete("id = 2")
    clean_up(table, keep=2)
    if restarted:
        run.restart()
    message = r"version 1 of .* its partition, and whether the table was partitioned by p is no longer known"
    with pytest.raises(TableError, match=message):
        run.read()


@pytest.mark.parametrize("restarted", [False, True])
def test_a_file_from_before_a_table_was_partitioned_is_removed_in_full(tmp_path: Path, *, restarted: bool) -> None:
    table = tmp_path / "table"
    before = pa.table({"id": [1, 2], "p": ["x", "y"]})
    write_deltalake(table, before, configuration=FEED)
    run = DeltaRun(tmp_path, table)
    run.catch_up()
    replaced(table, pa.table({"id": [1], "p": ["z"]}), ["p"])
    if restarted:
        run.restart()
    run.catch_up()
    assert run.fold.rows == {(1,): {"id": 1, "p": "z"}}
    replaced(table, pa.table({"id": [2], "p": ["z"]}), ["p"])
    assert run.plan()
    with pytest.raises(TableError, match=r"version 2 of .* does not say its value of the partition column p"):
        run.read()


def test_a_column_that_came_after_a_file_is_null_in_it_whatever_partitions_the_table_later(tmp_path: Path) -> None:
    table = tmp_path / "table"
    write_deltalake(table, pa.table({"id": [1]}), configuration=FEED)
    run = DeltaRun(tmp_path, table)
    run.catch_up()
    DeltaTable(table).alter.add_columns([Field("p", PrimitiveType("string"))])
    replaced(table, pa.table({"id": [2], "p": ["z"]}), ["p"])
    run.restart()
    assert run.plan()
    assert [(row["id"], row["p"]) for row in run.read()] == [(1, None), (2, "z")]
