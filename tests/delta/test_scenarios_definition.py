"""The definition of a Delta table, and of its key, changes or does not fit a stream."""

from __future__ import annotations

from contextlib import closing
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.schema import Field, PrimitiveType

from backfill.errors import SchemaChangedError, TableError
from backfill.options import parse
from backfill.upstream.delta import DeltaUpstream
from backfill.vnode import WHOLE_TABLE
from tests.delta import vectors
from tests.delta.laboratory import FEED
from tests.delta.stream import DeltaRun
from tests.delta.tables import all_read, half_read


def test_a_table_may_get_other_properties_and_comments(tmp_path: Path) -> None:
    """This holds for nested types and decimals, too, which may be written in several ways."""
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
    """Files from before then belong to no partition, and hold the column themselves."""
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


def test_a_column_that_was_dropped_and_added_again_is_reported(tmp_path: Path, table: Path) -> None:
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
    """A cast may cut a value, and the error of a failed cast would tell it."""
    folder, ids = tmp_path / "retyped", {"id": [1]}
    write_deltalake(folder, pa.table({**ids, "v": before}), configuration=FEED, partition_by=by)
    run = DeltaRun(tmp_path, folder)
    run.catch_up()
    write_deltalake(folder, pa.table({**ids, "v": now}), mode="overwrite", schema_mode="overwrite", partition_by=by)
    run.restart()
    expected = r"version 1 of .*got its present type: 'v'.*option columns.*a stream starts over"
    assert run.plan()
    with pytest.raises(SchemaChangedError, match=expected) as error:
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


def test_a_field_that_is_added_to_a_struct_within_a_map_is_reported_with_the_way_out(tmp_path: Path) -> None:
    """Changes have the field; in a snapshot `deltalake` (1.6) does not read the files from before."""
    table, few = tmp_path / "table", pa.struct([pa.field("a", pa.int64())])
    more = pa.struct([*few, pa.field("b", pa.string())])
    write_deltalake(table, _mapped(1, few), configuration=FEED)
    run = DeltaRun(tmp_path, table)
    run.catch_up()
    vectors.commit(table, [{"metaData": {**vectors.definition(table), "schemaString": _schema_of(_mapped(1, more))}}])
    run.restart()
    DeltaTable(table).delete()
    assert run.plan()
    assert [row["m"] for row in run.read()] == [[("k", {"a": 1, "b": None})]]
    DeltaTable(table).restore(1)
    options = {"path": str(table), "keyColumns": "id"}
    with pytest.raises(TableError, match=r"column 'm' .* another type in some .* SET `m` = `m`; .* option columns"):
        list(DeltaUpstream(parse(options)).reader().scan([WHOLE_TABLE]))
    [rows] = DeltaUpstream(parse({**options, "columns": "id"})).reader().scan([WHOLE_TABLE])
    assert rows["id"].to_pylist() == [1]


def _mapped(key: int, value: pa.DataType) -> pa.Table:
    kept = pa.array([[("k", {"a": key})]], pa.map_(pa.string(), value))
    return pa.table({"id": [key], "m": kept})


def _schema_of(rows: pa.Table) -> str:
    return Schema.from_arrow(rows.schema).to_json()


def test_whoever_reads_changes_alone_is_not_told_to_start_a_stream_anew(table: Path) -> None:
    write_deltalake(table, pa.table({"id": [1], "v": [5]}), mode="overwrite", schema_mode="overwrite")
    changes = DeltaUpstream(parse({"path": str(table), "keyColumns": "id"})).span("earliest", "latest")
    with pytest.raises(SchemaChangedError, match="a later startingPosition") as refused_with:
        list(changes.read())
    assert "checkpointLocation" not in refused_with.value.message
