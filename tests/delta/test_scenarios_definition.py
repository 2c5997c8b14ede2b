"""The definition of a Delta table, and of its key, changes or does not fit a stream."""

from __future__ import annotations

import json
import shutil
from collections import deque
from contextlib import closing
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.schema import Field, PrimitiveType

from backfill.errors import (
    BackfillError,
    OptionsError,
    SchemaChangedError,
    TableError,
    UnsupportedTypeError,
)
from backfill.options import parse
from backfill.upstream.delta import DeltaUpstream
from backfill.upstream.delta.keys import sorting
from backfill.upstream.delta.snapshot import measuring
from backfill.vnode import WHOLE_TABLE
from tests.delta.laboratory import FEED
from tests.delta.stream import DeltaRun
from tests.delta.tables import all_read, half_read, rows


def test_a_table_may_get_other_properties_and_comments(tmp_path: Path) -> None:
    """Also where a column's type is written in several ways."""
    table = tmp_path / "table"
    nested = pa.array([{"a": [{"b": 1}]}], pa.struct([("a", pa.list_(pa.struct([("b", pa.int32())])))]))
    write_deltalake(
        table, pa.table({"id": [1], "v": nested, "d": pa.array([1], pa.decimal128(10, 2))}), configuration=FEED
    )
    run = DeltaRun(tmp_path, table)
    run.catch_up()
    DeltaTable(table).alter.set_table_properties({**FEED, "delta.appendOnly": "false"})
    DeltaTable(table).alter.set_column_metadata("v", {"comment": "nested"})
    DeltaTable(table).delete("id = 1")
    run.catch_up()
    assert run.fold.counts == {"insert": 1, "delete": 1}


def test_a_table_that_is_partitioned_later_is_followed_past_that(tmp_path: Path) -> None:
    """Files from before then have no partition, and the column in themselves."""
    table = tmp_path / "table"
    write_deltalake(table, pa.table({"id": [1, 2], "p": ["a", "b"]}), configuration=FEED)
    run = DeltaRun(tmp_path, table)
    run.catch_up()
    run.restart()
    write_deltalake(table, pa.table({"id": [3], "p": ["c"]}), mode="append")
    later = pa.table({"id": [1, 2, 3, 4], "p": ["a", "B", "c", "d"]})
    write_deltalake(table, later, mode="overwrite", schema_mode="overwrite", partition_by=["p"], configuration=FEED)
    run.catch_up()
    assert [row["p"] for row in run.fold.rows.values()] == ["a", "B", "c", "d"]


def test_an_added_column_is_left_out_until_the_stream_is_started_anew(tmp_path: Path, table: Path) -> None:
    run = half_read(tmp_path, table)
    DeltaTable(table).alter.add_columns([Field("w", PrimitiveType("integer"))])
    DeltaTable(table).update(updates={"w": "id", "v": "'x'"}, predicate="id in (1, 9)")
    run.catch_up()
    assert run.fold.rows[1,] == {"id": 1, "v": "x"}
    other = DeltaRun(tmp_path / "other", table)
    other.catch_up()
    assert [other.fold.rows[key,]["w"] for key in (1, 2)] == [1, None]


def test_columns_may_be_added_one_after_the_other_while_the_stream_is_stopped(tmp_path: Path, table: Path) -> None:
    run = all_read(tmp_path, table)
    DeltaTable(table).alter.set_table_properties({**FEED, "delta.appendOnly": "false"})
    for place, name in enumerate("wx"):
        DeltaTable(table).alter.add_columns([Field(name, PrimitiveType("integer"))])
        DeltaTable(table).update(updates={name: "id"}, predicate=f"id = {place}")
    run.restart()
    run.fold.rows = {key: {**row, "w": None, "x": None} for key, row in run.fold.rows.items()}
    run.catch_up()
    assert [run.fold.rows[key,]["w"] for key in range(3)] == [0, None, None]
    assert [run.fold.rows[key,]["x"] for key in range(3)] == [None, 1, None]


def test_a_column_that_was_dropped_and_added_again_is_told(tmp_path: Path, table: Path) -> None:
    run = all_read(tmp_path, table)
    write_deltalake(table, pa.table({"id": [1]}), mode="overwrite", schema_mode="overwrite")
    DeltaTable(table).alter.set_table_properties({**FEED, "delta.appendOnly": "false"})
    DeltaTable(table).alter.add_columns([Field("v", PrimitiveType("string"))])
    run.restart()
    with pytest.raises(SchemaChangedError, match=r"version 2 of .*: column 'v' is missing"):
        run.plan()


RETYPED = {
    "text that is no number": (["it's a secret"], [5], None),
    "text that is no truth": (["secret"], [True], None),
    "a time that would be cut": ([datetime(2020, 1, 1, 12)], [date(2020, 1, 1)], None),  # noqa: DTZ001
    "a number that would be cut": ([1.5], [1], None),
    "a field that is gone": ([{"a": 1, "b": 2}], [{"a": 1}], None),
    "a partition's text that is no number": (["it's a secret"], [5], ["v"]),
}


@pytest.mark.parametrize(("before", "now", "by"), RETYPED.values(), ids=RETYPED)
def test_rows_from_before_a_column_was_given_another_type_are_not_cast(
    tmp_path: Path, before: list[Any], now: list[Any], by: list[str] | None
) -> None:
    """A value may be cut so, and its error would tell it."""
    folder, ids = tmp_path / "retyped", {"id": [1]}
    write_deltalake(folder, pa.table({**ids, "v": before}), configuration=FEED, partition_by=by)
    run = DeltaRun(tmp_path, folder)
    run.catch_up()
    write_deltalake(folder, pa.table({**ids, "v": now}), mode="overwrite", schema_mode="overwrite", partition_by=by)
    run.restart()
    told = r"version 1 of .*given its type of now: 'v'.*option columns.*a stream starts over"
    assert run.plan()
    with pytest.raises(SchemaChangedError, match=told) as error:
        run.read()
    assert "secret" not in str(error.value)
    run.restart(columns="id")
    assert run.read() == []


def test_a_table_that_is_read_as_it_is_now_is_still_as_it_was_described(tmp_path: Path) -> None:
    """Numbers would be read as texts, because they can be cast."""
    folder = tmp_path / "retyped"
    write_deltalake(folder, pa.table({"id": [1], "v": ["x"]}))
    upstream = DeltaUpstream(parse({"path": str(folder), "keyColumns": "id"}))
    with closing(upstream):
        reader = upstream.reader()
        assert [batch["v"].to_pylist() for batch in reader.scan([WHOLE_TABLE])] == [["x"]]
        write_deltalake(folder, pa.table({"id": [1], "v": [5]}), mode="overwrite", schema_mode="overwrite")
        with pytest.raises(SchemaChangedError, match="column 'v' has the type long, expected string"):
            list(reader.scan([WHOLE_TABLE]))


def test_a_batch_that_was_planned_before_a_column_was_given_another_type_is_not_cast(tmp_path: Path) -> None:
    folder = tmp_path / "retyped"
    write_deltalake(folder, pa.table({"id": [1], "v": [1.5]}), configuration=FEED)
    run = DeltaRun(tmp_path, folder)
    assert run.plan()
    write_deltalake(folder, pa.table({"id": [1], "v": [1]}), mode="overwrite", schema_mode="overwrite")
    run.restart()
    with pytest.raises(SchemaChangedError, match=r"version 0 of .* since then column v was given another type"):
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
    """Whatever the version has in it that the batch begins at: the process that staged it did not carry the column."""

    def add() -> None:
        DeltaTable(table).alter.add_columns([Field("w", PrimitiveType("integer"))])
        DeltaTable(table).update(updates={"w": "id"}, predicate="id = 9")

    run = DeltaRun(tmp_path, table, options={"vnodeCount": "1", "changelog": changelog})
    run.batch(3)
    if when == "long before":
        add()
    run.batch(2)
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
    """One is due only where the last rows get other columns."""
    run = DeltaRun(tmp_path, table, options={"changelog": changelog})
    run.catch_up()
    write_deltalake(table, rows((20, "new")), mode="append")
    run.catch_up()
    run.restart()
    assert not run.batch()


def all_of(table: Path, column: str) -> list[tuple[Any, Any]]:
    found = DeltaTable(table).to_pyarrow_table()
    return list(zip(found["id"].to_pylist(), found[column].to_pylist(), strict=True))


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"id": [1]}, "column 'v' is missing"),
        ({"id": [1], "V": ["x"]}, "column 'v' is missing"),
        ({"id": [1], "v": [5]}, "column 'v' has the type long, expected string"),
    ],
    ids=["dropped", "renamed", "of another type"],
)
def test_a_column_that_is_gone_or_of_another_type_is_named(
    tmp_path: Path, table: Path, columns: dict[str, list[Any]], problem: str
) -> None:
    run = half_read(tmp_path, table)
    write_deltalake(table, pa.table(columns), mode="overwrite", schema_mode="overwrite")
    with pytest.raises(SchemaChangedError, match=f"version 2 of .*: {problem}"):
        run.plan()
    DeltaTable(table).restore(1)
    with pytest.raises(SchemaChangedError, match=f"version 2 of .*: {problem}"):
        run.plan()


def test_a_field_that_is_added_to_a_struct_comes_once_the_query_is_started_again(tmp_path: Path) -> None:
    table = tmp_path / "table"
    write_deltalake(table, pa.table({"id": [1], "s": [{"a": 1}]}), configuration=FEED)
    run = DeltaRun(tmp_path, table)
    run.catch_up()
    write_deltalake(table, pa.table({"id": [2], "s": [{"a": 2, "b": "x"}]}), mode="append", schema_mode="merge")
    with pytest.raises(SchemaChangedError, match=r"column 's' has the type .* Start the query again, which carries"):
        run.plan()
    run.restart()
    assert run.plan()
    assert [row["s"] for row in run.read()] == [{"a": 2, "b": "x"}]
    run.committed += 1
    DeltaTable(table).delete("id = 1")
    assert run.plan()
    assert [row["s"] for row in run.read()] == [{"a": 1, "b": None}]


def test_whoever_reads_changes_alone_is_not_told_to_start_a_stream_anew(table: Path) -> None:
    write_deltalake(table, pa.table({"id": [1], "v": [5]}), mode="overwrite", schema_mode="overwrite")
    changes = DeltaUpstream(parse({"path": str(table), "keyColumns": "id"})).span("earliest", "latest")
    with pytest.raises(SchemaChangedError, match="a later startingPosition") as refused_with:
        list(changes.read())
    assert "checkpointLocation" not in refused_with.value.message


# -- keys ----------------------------------------------------------------------------------------------------------


def refused(table: Path, kind: type[BackfillError], match: str, **options: str) -> None:
    with pytest.raises(kind, match=match):
        DeltaUpstream(parse({"path": str(table), "keyColumns": "id", **options})).schema()


def test_a_key_has_to_be_of_columns_that_are_there_and_can_be_ordered(tmp_path: Path, table: Path) -> None:
    refused(table, OptionsError, "option keyColumns: .* has no column 'ID', did you mean 'id'?", keyColumns="ID")
    refused(table, OptionsError, "option columns: .* has no column 'w'; it has id, v", columns="id, w")
    DeltaTable.create(tmp_path / "floats", schema=pa.schema([("id", pa.float64()), ("tags", pa.list_(pa.int32()))]))
    refused(tmp_path / "floats", UnsupportedTypeError, "column 'id' of the key has the type double")
    refused(tmp_path / "floats", UnsupportedTypeError, "column 'tags' of the key", keyColumns="tags")
    refused(tmp_path / "none", TableError, "there is no Delta table")


def test_a_row_without_a_key_is_refused_in_the_table_and_in_a_change(tmp_path: Path, table: Path) -> None:
    run = all_read(tmp_path, table)
    write_deltalake(table, rows((None, "x")), mode="append")
    assert run.plan()
    with pytest.raises(TableError, match="the key column id is null in some rows"):
        run.read()
    with pytest.raises(TableError, match="the key column id is null in some rows"):
        DeltaRun(tmp_path / "other", table).plan()


def test_two_rows_of_one_key_are_refused_in_the_table_and_in_a_commit(tmp_path: Path, table: Path) -> None:
    run = all_read(tmp_path, table)
    write_deltalake(table, rows((20, "one"), (20, "two")), mode="append")
    assert run.plan()
    with pytest.raises(TableError, match="several rows of one key"):
        run.read()
    with pytest.raises(TableError, match="several rows of one key"):
        DeltaRun(tmp_path / "other", table).plan()


def test_a_checkpoint_of_a_table_of_postgresql_is_refused(tmp_path: Path, table: Path) -> None:
    run = half_read(tmp_path, table)
    run.restart()
    shutil.rmtree(run.folder / "state")
    run.offsets = [json.dumps({**json.loads(run.offsets[0]), "upstream": {"slot": "s", "table_id": "16384"}})]
    with pytest.raises(OptionsError, match="the checkpoint is of a table of PostgreSQL, and path names a Delta table"):
        run.batch()


def test_a_null_in_the_key_is_found_wherever_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only in the sample of keys that vnodes are cut by."""
    monkeypatch.setattr(measuring, "SAMPLE", 1)
    ids = [None if at == 501 else at for at in range(1000)]
    write_deltalake(tmp_path, pa.table({"id": pa.array(ids, pa.int64())}))
    upstream = DeltaUpstream(parse({"path": str(tmp_path), "keyColumns": "id"}))
    with closing(upstream), pytest.raises(TableError, match="is null"):
        upstream.bounds(4)


def test_rows_of_one_key_are_found_on_either_side_of_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorting, "BATCH_ROWS", 1)
    write_deltalake(tmp_path, pa.table({"id": pa.array([1, 2, 2, 3], pa.int64())}))
    upstream = DeltaUpstream(parse({"path": str(tmp_path), "keyColumns": "id"}))
    with closing(upstream), pytest.raises(TableError, match="several rows of one key"):
        deque(upstream.reader().scan([WHOLE_TABLE]), maxlen=0)
