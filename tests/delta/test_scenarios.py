"""What has gone wrong elsewhere with streams over Delta tables, and what a table may go through meanwhile."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, Schema, convert_to_deltalake, write_deltalake
from deltalake.schema import Field, PrimitiveType

from backfill.errors import (
    BackfillError,
    DatabaseSetupError,
    DataLossError,
    OptionsError,
    SchemaChangedError,
    StateError,
    TableError,
    UnsupportedTypeError,
)
from backfill.options import parse
from backfill.plan import Measure
from backfill.upstream.delta import DeltaUpstream
from backfill.vnode import WHOLE_TABLE, KeyRange
from tests.delta import vectors
from tests.delta.laboratory import FEED, clean_up, cloned, vacuum
from tests.delta.stream import DeltaRun

_TYPES: dict[str, pa.DataType] = {"id": pa.int64(), "v": pa.string()}
COLUMNS = pa.schema(_TYPES)


def rows(*pairs: tuple[int | None, str]) -> pa.Table:
    return pa.Table.from_pylist([{"id": key, "v": value} for key, value in pairs], schema=COLUMNS)


def created(folder: Path, properties: dict[str, str] = FEED, first: int = 10) -> Path:
    """The table `(id, v)` with the keys from 0 on."""
    DeltaTable.create(folder, schema=COLUMNS, configuration=properties)
    write_deltalake(folder, rows(*[(key, f"v{key}") for key in range(first)]), mode="append")
    return folder


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return created(tmp_path / "table")


def half_read(tmp_path: Path, table: Path) -> DeltaRun:
    """A stream in the middle of its backfill."""
    run = DeltaRun(tmp_path, table, options={"vnodeCount": "3", "numPartitions": "1"})
    run.batch(5)
    assert not run.backfilled
    return run


def all_read(tmp_path: Path, table: Path) -> DeltaRun:
    run = half_read(tmp_path, table)
    run.catch_up()
    run.fold.counts.clear()
    return run


def merged(table: Path, source: pa.Table) -> Any:
    return DeltaTable(table).merge(source, "t.id = s.id", source_alias="s", target_alias="t")


def test_columns_may_have_the_names_of_ours_and_begin_with_a_dot(tmp_path: Path) -> None:
    names = (".id", "id", "_version", "_time", "_there", ".a.b")
    schema = pa.schema([(name, pa.int64()) for name in names])

    def made(*keys: int) -> pa.Table:
        return pa.Table.from_arrays([pa.array([key * place for key in keys]) for place in range(1, 7)], schema=schema)

    table = tmp_path / "table"
    DeltaTable.create(table, schema=schema, configuration=FEED)
    write_deltalake(table, made(1, 2, 3, 4, 5, 6), mode="append")
    run = DeltaRun(tmp_path, table, key=(".id", "_version"), options={"vnodeCount": "3", "numPartitions": "1"})
    run.batch(2)
    assert not run.backfilled
    write_deltalake(table, made(7, 8, 9), mode="append")
    run.catch_up()
    DeltaTable(table).update(updates={"_there": "0", "`.a.b`": "1"}, predicate="id > 4")
    DeltaTable(table).delete("id = 6")
    run.catch_up()
    assert run.fold.counts == {"insert": 9, "update_preimage": 7, "update_postimage": 7, "delete": 1}


# -- commits that change no row ------------------------------------------------------------------------------------


@pytest.mark.parametrize("begun", [half_read, all_read], ids=["in mid-backfill", "after it"])
def test_what_only_rewrites_files_gives_no_rows(
    tmp_path: Path, table: Path, begun: Callable[[Path, Path], DeltaRun]
) -> None:
    """OPTIMIZE, Z-ORDER, an update to the same values, a MERGE of what is there, an overwrite with the same rows."""
    write_deltalake(table, rows((20, "more")), mode="append")
    run = begun(tmp_path, table)
    inserted = run.fold.counts.get("insert", 0)
    before = DeltaTable(table).version()
    DeltaTable(table).optimize.compact()
    DeltaTable(table).optimize.z_order(["id"])
    DeltaTable(table).update(updates={"v": "v"})
    merged(table, rows((1, "v1"), (2, "v2"))).when_matched_update_all().execute()
    merged(table, rows((99, "none"))).when_matched_update_all().execute()
    write_deltalake(table, pa.table(DeltaTable(table).scan()), mode="overwrite")
    assert DeltaTable(table).version() >= before + 5
    run.catch_up()
    assert run.fold.counts == {"insert": 11} if inserted else not run.fold.counts


def test_overwriting_the_table_gives_only_what_has_changed(tmp_path: Path, table: Path) -> None:
    run = all_read(tmp_path, table)
    write_deltalake(table, rows((1, "v1"), (2, "new"), (30, "more")), mode="overwrite")
    run.catch_up()
    assert run.fold.counts == {"delete": 8, "update_preimage": 1, "update_postimage": 1, "insert": 1}


def test_restoring_a_version_gives_what_it_changes(tmp_path: Path, table: Path) -> None:
    run = all_read(tmp_path, table)
    DeltaTable(table).delete("id < 3")
    DeltaTable(table).update(updates={"v": "'x'"}, predicate="id = 5")
    run.catch_up()
    run.fold.counts.clear()
    DeltaTable(table).restore(1)
    run.catch_up()
    assert run.fold.counts == {"insert": 3, "update_preimage": 1, "update_postimage": 1}


# -- where the feed begins and ends --------------------------------------------------------------------------------


def test_a_table_without_a_feed_is_refused_with_what_enables_it_and_begins_with_the_rows_from_before(
    tmp_path: Path,
) -> None:
    table = created(tmp_path / "table", {})
    run = DeltaRun(tmp_path, table)
    with pytest.raises(DatabaseSetupError, match=r"SET TBLPROPERTIES \(delta.enableChangeDataFeed = true\)"):
        run.plan()
    DeltaTable(table).alter.set_table_properties(FEED)
    run.catch_up()
    assert run.fold.counts == {"insert": 10}
    DeltaTable(table).delete("id = 1")
    run.catch_up()
    assert run.fold.counts == {"insert": 10, "delete": 1}


def test_a_feed_that_was_off_for_a_while_has_lost_changes(
    tmp_path: Path, table: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = all_read(tmp_path, table)
    DeltaTable(table).alter.set_table_properties({**FEED, "delta.enableChangeDataFeed": "false"})
    DeltaTable(table).delete("id = 1")
    DeltaTable(table).alter.set_table_properties(FEED)
    with pytest.raises(DataLossError, match=r"version 2 of .* has switched the change data feed off"):
        run.plan()
    run.restart(failOnDataLoss="false")
    with caplog.at_level(logging.ERROR):
        run.catch_up()
    assert "going on although changes were lost" in caplog.text


def test_the_oldest_changes_are_those_since_the_feed_was_switched_on_and_the_log_was_cleaned_up(
    table: Path,
) -> None:
    def earliest() -> str:
        upstream = DeltaUpstream(parse({"path": str(table), "keyColumns": "id"}))
        found = upstream.span("earliest", "latest")
        assert found.upto == str(DeltaTable(table).version())
        assert sum(batch.num_rows for batch in found.read()) == 10 * (found.after == "-1") + 1
        return found.after

    DeltaTable(table).delete("id = 1")
    assert earliest() == "-1"
    DeltaTable(table).alter.set_table_properties({**FEED, "delta.enableChangeDataFeed": "false"})
    DeltaTable(table).delete("id = 2")
    DeltaTable(table).alter.set_table_properties(FEED)
    DeltaTable(table).delete("id = 3")
    assert earliest() == "5"
    with pytest.raises(DataLossError, match="was off at version 4"):
        DeltaUpstream(parse({"path": str(table), "keyColumns": "id"})).span("4", "latest")
    clean_up(table, keep=1)
    DeltaTable(table).delete("id = 4")
    assert earliest() == "6"


def test_the_first_change_is_that_of_the_version_after_the_snapshot(tmp_path: Path, table: Path) -> None:
    """The commit after it comes before the rows are read, and the one before it when they are planned."""
    DeltaTable(table).update(updates={"v": "'before'"}, predicate="id = 1")
    run = DeltaRun(tmp_path, table)
    assert run.plan()
    DeltaTable(table).update(updates={"v": "'after'"}, predicate="id = 1")
    run.commit(run.read())
    assert run.fold.rows[1,] == {"id": 1, "v": "before"}
    run.catch_up()
    assert run.fold.counts == {"insert": 10, "update_preimage": 1, "update_postimage": 1}


# -- what is not kept for ever -------------------------------------------------------------------------------------


def test_a_log_that_was_cleaned_up_under_a_lagging_stream_is_told(
    tmp_path: Path, table: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = all_read(tmp_path, table)
    DeltaTable(table).delete("id = 1")
    DeltaTable(table).delete("id = 2")
    clean_up(table)
    lost = r"no longer has version 2: .*logRetentionDuration"
    with pytest.raises(DataLossError, match=lost):
        run.plan()
    run.restart()
    with pytest.raises(DataLossError, match=lost):
        run.plan()
    run.restart(failOnDataLoss="false")
    with caplog.at_level(logging.ERROR):
        assert run.plan()
        run.fold.apply(run.read())
    assert "no longer has version 3" in caplog.text


def test_files_that_vacuum_took_away_before_their_changes_were_read_are_told(
    tmp_path: Path, table: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = all_read(tmp_path, table)
    write_deltalake(table, rows((1, "v1")), mode="overwrite")
    write_deltalake(table, rows((50, "new")), mode="append")
    vacuum(table)
    assert run.plan()
    with pytest.raises(DataLossError, match=r"files of version 2 to \d of .* are gone .*VACUUM has removed them"):
        run.read()
    run.restart(failOnDataLoss="false")
    with caplog.at_level(logging.ERROR):
        assert [row["id"] for row in run.read()] == [50]
    assert "with changes of version 2 is gone" in caplog.text


def test_files_that_vacuum_took_away_before_they_were_read_are_told(tmp_path: Path, table: Path) -> None:
    run = half_read(tmp_path, table)
    assert run.plan(5)
    write_deltalake(table, rows((1, "v1")), mode="overwrite")
    vacuum(table)
    for _ in range(2):
        with pytest.raises(DataLossError, match=r"files of version 1 of .* are gone"):
            run.read()
        run.restart()


def test_another_table_at_the_same_path_is_told(tmp_path: Path, table: Path) -> None:
    run = all_read(tmp_path, table)
    assert not run.plan()
    shutil.rmtree(table)
    created(table)
    with pytest.raises(DataLossError, match="was deleted and made again: the stream followed the table with id"):
        run.plan()
    run.restart()
    with pytest.raises(StateError, match="was dropped and made again since the stream began"):
        run.plan()
    shutil.rmtree(table)
    run.restart()
    with pytest.raises(TableError, match=r"there is no Delta table at .*; check the option path"):
        run.plan()


def test_an_older_copy_of_the_table_is_told(tmp_path: Path, table: Path) -> None:
    shutil.copytree(table, tmp_path / "copy")
    run = all_read(tmp_path, table)
    DeltaTable(table).delete("id = 1")
    run.catch_up()
    shutil.rmtree(table)
    (tmp_path / "copy").rename(table)
    run.restart()
    with pytest.raises(DataLossError, match=r"has read version 2 .* and its log ends with version 1"):
        run.plan()


# -- deletion vectors, and what cannot be read ---------------------------------------------------------------------


def test_rows_deleted_by_a_vector_are_not_there_and_their_deletes_come(tmp_path: Path) -> None:
    table = created(tmp_path / "table", {**FEED, **vectors.PROPERTIES})
    vectors.delete_rows(table, [1, 3])
    run = half_read(tmp_path, table)
    vectors.delete_rows(table, [1, 2, 3, 9])
    run.catch_up()
    assert sorted(run.fold.rows) == [(key,) for key in (0, 4, 5, 6, 7, 8)]
    vectors.delete_rows(table, [1, 2, 3, 4, 9])
    DeltaTable(table).restore(2)
    run.catch_up()
    assert len(run.fold.rows) == 8


def test_files_of_the_same_name_have_vectors_of_their_own(tmp_path: Path) -> None:
    """As in a table that was converted from Parquet, whose other writers number the files of each folder."""
    table = tmp_path / "ta ble"
    by_day = ds.partitioning(pa.schema([("day", pa.int64())]), flavor="hive")
    ds.write_dataset(
        pa.table({"id": range(10), "day": [1] * 5 + [2] * 5}), table, format="parquet", partitioning=by_day
    )
    partitions = Schema([Field("day", PrimitiveType("long"))])
    convert_to_deltalake(table, partition_by=partitions, partition_strategy="hive", configuration=FEED)
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors", "changeDataFeed"]}
    vectors.commit(table, [{"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}])
    run = all_read(tmp_path, table)
    for places, day in (([0], 1), ([3], 2), ([0, 1], 1), ([2, 3], 2)):
        vectors.delete_rows(table, places, within=f"day={day}/")
        run.catch_up()
    assert sorted(run.fold.rows) == [(key,) for key in (2, 3, 4, 5, 6, 9)]


@pytest.mark.parametrize("strict", ["true", "false"])
def test_a_shallow_clone_has_files_outside_its_folder(tmp_path: Path, strict: str) -> None:
    source = tmp_path / "sour ce"
    parts = pa.array(["a b:%", "a#?"] * 3)
    properties = {**FEED, **vectors.PROPERTIES}
    write_deltalake(source, pa.table({"id": range(6), "p": parts}), partition_by=["p"], configuration=properties)
    table = cloned(source, tmp_path / "clone")
    run = DeltaRun(tmp_path, table, options={"failOnDataLoss": strict})
    run.catch_up()
    vectors.delete_rows(table, [1])
    run.catch_up()
    assert run.fold.counts == {"insert": 6, "delete": 1}
    write_deltalake(table, pa.table({"id": [0, 9], "p": parts[:2]}), mode="overwrite")
    run.catch_up()
    assert run.fold.counts == {"insert": 7, "delete": 5}


@pytest.mark.parametrize("kept", [1, 2], ids=["what was before the only commit", "both commits' own versions"])
def test_which_rows_a_vector_had_deleted_before_may_no_longer_be_known(
    tmp_path: Path, kept: int, caplog: pytest.LogCaptureFixture
) -> None:
    table = created(tmp_path / "table", {**FEED, **vectors.PROPERTIES})
    vectors.delete_rows(table, [1])
    run = all_read(tmp_path, table)
    for gone in range(2, 2 + kept):
        vectors.delete_rows(table, [1, *range(2, gone + 1)])
    clean_up(table, keep=kept)
    assert run.plan()
    with pytest.raises(DataLossError, match=r"version 2 of .* cannot be had any more; its log was cleaned up"):
        run.read()
    run.restart(failOnDataLoss="false")
    with caplog.at_level(logging.ERROR):
        assert run.read() == []
    assert "the changes of version 3 cannot be told" in caplog.text


def test_a_table_that_wants_more_of_its_readers_is_refused(tmp_path: Path, table: Path) -> None:
    run = all_read(tmp_path, table)
    features = {"readerFeatures": ["typeWidening"], "writerFeatures": ["typeWidening", "changeDataFeed"]}
    vectors.commit(table, [{"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}])
    for _ in range(2):
        with pytest.raises(TableError, match="typeWidening"):
            run.plan()
        run.restart()


def test_renamed_columns_are_refused_for_a_stream_and_read_as_a_snapshot(tmp_path: Path) -> None:
    table = created(tmp_path / "table", {**FEED, "delta.columnMapping.mode": "name"})
    run = DeltaRun(tmp_path, table)
    with pytest.raises(TableError, match="the changes of such a table cannot be read"):
        run.plan()
    run.restart(startupMode="snapshot")
    run.catch_up()
    assert run.fold.counts == {"insert": 10}


def test_columns_that_get_other_names_in_the_files_end_a_running_stream(tmp_path: Path, table: Path) -> None:
    run = all_read(tmp_path, table)
    described = DeltaTable(table)
    meta = described.metadata()
    mapped = {
        "id": str(meta.id),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": described.schema().to_json(),
        "partitionColumns": meta.partition_columns,
        "configuration": {**meta.configuration, "delta.columnMapping.mode": "name"},
    }
    vectors.commit(table, [{"metaData": mapped}])
    with pytest.raises(TableError, match="the changes of such a table cannot be read"):
        run.plan()


def test_a_removed_file_of_which_the_partition_is_not_said_is_refused(tmp_path: Path) -> None:
    """The protocol lets a writer leave it out."""
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


# -- the table's definition ----------------------------------------------------------------------------------------


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
    for other in (run, DeltaRun(tmp_path / "other", table)):
        assert other is not run or other.plan()
        with pytest.raises(TableError, match="the key column id is null in some rows"):
            _ = other.read() if other is run else other.plan()


def test_two_rows_of_one_key_are_refused_in_the_table_and_in_a_commit(tmp_path: Path, table: Path) -> None:
    run = all_read(tmp_path, table)
    write_deltalake(table, rows((20, "one"), (20, "two")), mode="append")
    assert run.plan()
    with pytest.raises(TableError, match="several rows of one key"):
        run.read()
    with pytest.raises(TableError, match="several rows of one key"):
        DeltaRun(tmp_path / "other", table).plan()


# -- what is not read ----------------------------------------------------------------------------------------------


def test_files_without_keys_of_a_range_are_left_out(tmp_path: Path) -> None:
    """Seen by taking them away: what is read without them has not looked at them."""
    table = tmp_path / "table"
    DeltaTable.create(table, schema=COLUMNS, configuration=FEED)
    for first in range(0, 50, 10):
        write_deltalake(table, rows(*[(key, f"v{key}") for key in range(first, first + 10)]), mode="append")
    upstream = DeltaUpstream(parse({"path": str(table), "keyColumns": "id"}))
    ranges = [*upstream.bounds(5)]
    assert ranges == [("10",), ("20",), ("30",), ("40",)]
    pin = upstream.next_epoch(None, snapshot=True, max_changes=100, until=None).pin
    assert pin is not None
    (request,) = [Measure(WHOLE_TABLE, 100)]
    assert upstream.measure([request])[0].row_count == 50
    actions = pa.table(DeltaTable(table).get_add_actions(flatten=True)).to_pylist()
    for action in actions:
        if action["min.id"] != 20:
            (table / action["path"]).unlink()
    inside = KeyRange(("20",), ("29",))
    assert upstream.measure([Measure(inside, 100)])[0].row_count == 9
    assert sum(batch.num_rows for batch in upstream.reader().read(pin.token, [inside])) == 9
    with pytest.raises(DataLossError, match="are gone"):
        upstream.measure([request])


@pytest.mark.parametrize(
    ("condition", "named"),
    [
        ("random() < 0.5", "has random in it"),
        ("id > 0 AND current_timestamp > '2020-01-01'", "has current_timestamp in it"),
        ("get_current_timestamp() > '2020-01-01'", "has get_current_timestamp in it"),
        ("id IN (SELECT 1)", "has a subselect in it"),
        ("1 = 2) OR (1 = 1", "is no condition, but more or less than one"),
        ("v", 'is of the type "?VARCHAR"?, and a condition'),
    ],
)
def test_a_snapshot_filter_depends_on_nothing_but_the_row(
    tmp_path: Path, table: Path, condition: str, named: str
) -> None:
    with pytest.raises(OptionsError, match=f"the option snapshotFilter {named}"):
        DeltaRun(tmp_path, table, options={"snapshotFilter": condition}).plan()


def test_a_snapshot_filter_chooses_among_the_rows_that_are_there(tmp_path: Path, table: Path) -> None:
    run = DeltaRun(tmp_path, table, options={"snapshotFilter": "id % 2 = 0 AND v <> 'v4'", "columns": "id"})
    assert run.plan()
    assert [row["id"] for row in run.read()] == [0, 2, 6, 8]
    with pytest.raises(OptionsError, match="the option snapshotFilter is no condition"):
        DeltaRun(tmp_path / "other", table, options={"snapshotFilter": "nope = 1"}).plan()


def test_a_condition_means_the_same_in_every_time_zone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "table"
    times = [datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in (0, 20, 23)]
    write_deltalake(folder, pa.table({"id": [0, 1, 2], "made": times}), configuration=FEED)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    condition = "CAST(made AS DATE) = '2026-01-01' AND made < '2026-01-01 22:00'"
    upstream = DeltaUpstream(parse({"path": str(folder), "keyColumns": "id", "filter": condition}))
    found = pa.Table.from_batches(upstream.reader().read(None, [WHOLE_TABLE]))
    assert found["made"].to_pylist() == times[:2]
    run = DeltaRun(tmp_path, folder, options={"snapshotFilter": condition})
    assert run.plan()
    assert [row["id"] for row in run.read()] == [0, 1]


@pytest.mark.parametrize("before", [0, 200_000], ids=["at once", "after many others"])
@pytest.mark.parametrize(
    ("condition", "kind"),
    [
        ("CAST(n AS TINYINT) % 2 = 1", "Conversion Error"),
        ("n * 1000000000000000000 > 1", "Out of Range Error"),
        ("strptime(v, '%Y') IS NULL", "Invalid Input Error"),
    ],
)
def test_a_condition_that_fails_for_a_row_is_at_fault_and_the_row_stays_untold(
    tmp_path: Path, before: int, condition: str, kind: str
) -> None:
    folder = tmp_path / "table"
    found = {"id": range(before + 1), "n": [1] * before + [31_415], "v": ["2020"] * before + ["hunter2"]}
    write_deltalake(folder, pa.table(found), configuration=FEED)
    given = {"path": str(folder), "keyColumns": "id", "filter": condition}
    with pytest.raises(OptionsError, match=f"of the table: {kind}.") as caught:
        list(DeltaUpstream(parse(given)).reader().read(None, [WHOLE_TABLE]))
    assert "31415" not in caught.value.message
    assert "hunter2" not in caught.value.message
    with pytest.raises(OptionsError, match="snapshotFilter"):
        DeltaRun(tmp_path, folder, options={"snapshotFilter": condition}).plan()


def test_a_checkpoint_of_a_table_of_postgresql_is_refused(tmp_path: Path, table: Path) -> None:
    run = half_read(tmp_path, table)
    run.restart()
    shutil.rmtree(run.folder / "state")
    run.offsets = [json.dumps({**json.loads(run.offsets[0]), "upstream": {"slot": "s", "table_id": "16384"}})]
    with pytest.raises(OptionsError, match="the checkpoint is of a table of PostgreSQL, and path names a Delta table"):
        run.batch()
