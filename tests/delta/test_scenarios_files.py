"""Deletion vectors, clones, and files that other writers make."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema, convert_to_deltalake, write_deltalake
from deltalake.schema import Field, PrimitiveType

from backfill.errors import TableError, UnknownFeatureError
from backfill.options import parse
from backfill.upstream.delta import DeltaUpstream
from backfill.upstream.delta.doctor import examine
from tests.delta import vectors
from tests.delta.laboratory import FEED, clean_up, cloned
from tests.delta.stream import DeltaRun
from tests.delta.tables import all_read, created, half_read


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
    """Such files are in a table that was converted from Parquet, whose writers number the files of each folder."""
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


@pytest.mark.parametrize("scheme", ["file:", "file://", ""])
@pytest.mark.parametrize("strict", ["true", "false"])
def test_a_shallow_clone_has_files_outside_its_folder(tmp_path: Path, strict: str, scheme: str) -> None:
    source = tmp_path / "sour ce"
    parts = pa.array(["a b:%", "a#?"] * 3)
    properties = {**FEED, **vectors.PROPERTIES}
    write_deltalake(source, pa.table({"id": range(6), "p": parts}), partition_by=["p"], configuration=properties)
    table = cloned(source, tmp_path / "clone", scheme=scheme)
    run = DeltaRun(tmp_path, table, options={"failOnDataLoss": strict})
    run.catch_up()
    vectors.delete_rows(table, [1])
    run.catch_up()
    assert run.fold.counts == {"insert": 6, "delete": 1}
    write_deltalake(table, pa.table({"id": [0, 9], "p": parts[:2]}), mode="overwrite")
    run.catch_up()
    assert run.fold.counts == {"insert": 7, "delete": 5}


def test_which_rows_a_vector_had_deleted_before_is_read_from_the_commit_itself(tmp_path: Path) -> None:
    table = created(tmp_path / "table", {**FEED, **vectors.PROPERTIES})
    vectors.delete_rows(table, [1])
    run = all_read(tmp_path, table)
    vectors.delete_rows(table, [1, 2])
    vectors.delete_rows(table, [1, 2, 3])
    clean_up(table, keep=2)
    run.catch_up()
    assert run.fold.counts == {"delete": 2}


def test_times_that_spark_writes_are_the_same_in_the_snapshot_as_in_changes(tmp_path: Path) -> None:
    """Spark writes them as INT96 by default, of which `DeltaTable.scan` reads the year 9999 as 1816."""
    table = tmp_path / "table"
    of = {year: datetime(year, 12, 31, 23, 59, 59, 999_999, UTC) for year in (1, 1600, 2026, 9999)}
    kind = pa.timestamp("us", tz="UTC")
    times = pa.array(of.values(), kind)
    lists = pa.array([[time] for time in of.values()], pa.list_(kind))
    rows = pa.table({"t": times, "id": pa.array(of, pa.int64()), "l": lists})
    DeltaTable.create(table, schema=rows.schema, configuration=FEED)
    written = table / "spark.parquet"
    pq.write_table(rows, written, use_deprecated_int96_timestamps=True, store_schema=False)
    file = {"path": written.name, "partitionValues": {}, "size": written.stat().st_size, "dataChange": True}
    vectors.commit(table, [{"add": {**file, "modificationTime": 1}}])
    run = DeltaRun(tmp_path, table, key=("t",), options={"vnodeCount": "3"})
    expected = [(time, year, [time]) for year, time in of.items()]

    def read() -> list[tuple[str, tuple[Any, ...]]]:
        run.plan()
        found = sorted(run.read(), key=lambda row: row["id"])
        run.committed += 1
        return [(row["_change_type"], tuple(row[name] for name in rows.column_names)) for row in found]

    assert read() == [("insert", row) for row in expected]
    vectors.commit(table, [{"remove": file}])
    assert read() == [("delete", row) for row in expected]


def test_a_value_that_does_not_fit_into_its_column_is_not_shown(tmp_path: Path) -> None:
    """Other writers may leave a file with values that the table's types cannot hold."""
    nano = pa.table({"id": [1], "t": pa.array([1_577_836_800_000_000_001], pa.timestamp("ns", "UTC"))})
    large = pa.table({"id": pa.array([2**40], pa.int64())})
    for rows, kinds in ((large, [pa.int32()]), (nano, [pa.int64(), pa.timestamp("us", "UTC")])):
        table = tmp_path / str(len(kinds))
        schema = pa.schema(list(zip(rows.column_names, kinds, strict=True)))
        DeltaTable.create(table, schema=schema, configuration=FEED)
        run = DeltaRun(tmp_path / "run" / table.name, table)
        run.batch()
        pq.write_table(rows, table / "odd.parquet")
        file = {"path": "odd.parquet", "partitionValues": {}, "size": (table / "odd.parquet").stat().st_size}
        vectors.commit(table, [{"add": {**file, "modificationTime": 1, "dataChange": True}}])
        run.plan()
        with pytest.raises(TableError, match=r"cannot be used: .*…") as error:
            run.read()
        assert not re.search(r"\d{9}", error.value.message.partition("cannot be used")[2])


FORMS = {
    "dictionary": (pa.string(), pa.array(["x"]).dictionary_encode(), "x"),
    "fixed list": (pa.list_(pa.float32()), pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2)), [1.0, 2.0]),
    "bytes": (pa.string(), pa.array([b"x"]), "x"),
    "views": (pa.string(), pa.array(["longer than twelve"], pa.string_view()), "longer than twelve"),
    "bytes in views": (pa.binary(), pa.array([b"longer than twelve"], pa.binary_view()), b"longer than twelve"),
    "fixed bytes": (pa.binary(), pa.array([b"xy"], pa.binary(2)), b"xy"),
    "wide": (pa.int8(), pa.array([7], pa.int32()), 7),
    "unsigned": (pa.int64(), pa.array([7], pa.uint32()), 7),
    "nanoseconds without a zone": (
        pa.timestamp("us", "UTC"),
        pa.array([0], pa.timestamp("ns")),
        datetime.fromtimestamp(0, UTC),
    ),
    "dictionary in a struct": (
        pa.struct([("a", pa.string())]),
        pa.StructArray.from_arrays([pa.array(["x"]).dictionary_encode()], ["a"]),
        {"a": "x"},
    ),
    "extension": (pa.string(), pa.array(["{}"], pa.json_()), "{}"),
}


@pytest.mark.parametrize("keeps_schema", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_a_file_may_have_a_column_in_another_form(tmp_path: Path, form: str, *, keeps_schema: bool) -> None:
    kind, values, expected = FORMS[form]
    table = tmp_path / "forms"
    DeltaTable.create(table, schema=pa.schema([pa.field("id", pa.int64()), pa.field("v", kind)]), configuration=FEED)
    run = DeltaRun(tmp_path / "run", table)
    run.batch()
    pq.write_table(pa.table({"id": [1], "v": values}), table / "odd.parquet", store_schema=keeps_schema)
    file = {"path": "odd.parquet", "partitionValues": {}, "size": (table / "odd.parquet").stat().st_size}
    vectors.commit(table, [{"add": {**file, "modificationTime": 1, "dataChange": True}}])
    assert run.plan()
    assert [row["v"] for row in run.read()] == [expected]


TEXTS: dict[str, pa.DataType] = {
    "views": pa.string_view(),
    "bytes in views": pa.binary_view(),
    "large": pa.large_string(),
    "bytes": pa.binary(),
    "dictionary": pa.dictionary(pa.int8(), pa.string()),
}


@pytest.mark.parametrize("form", TEXTS)
def test_a_file_of_the_change_data_feed_may_have_texts_in_another_form(tmp_path: Path, table: Path, form: str) -> None:
    """The change types are in that form as well: an Arrow writer notes in the file the form that it had a column in."""
    run = all_read(tmp_path, table)
    before, after = ("v3", "much longer than what a view has in itself")
    kinds = pa.array(["update_preimage", "update_postimage"]).cast(TEXTS[form])
    changes = pa.table({"id": [3, 3], "v": pa.array([before, after]).cast(TEXTS[form]), "_change_type": kinds})
    (table / "_change_data").mkdir()
    pq.write_table(changes, table / "_change_data" / "changes.parquet")
    logged = {"path": "_change_data/changes.parquet", "partitionValues": {}, "size": 1, "dataChange": False}
    vectors.commit(table, [{"commitInfo": {"timestamp": 1}}, {"cdc": logged}])
    assert run.plan()
    changed = [("update_preimage", 3, before), ("update_postimage", 3, after)]
    assert [(row["_change_type"], row["id"], row["v"]) for row in run.read()] == changed


def wants(table: Path, *features: str) -> None:
    """Commits that readers of the table have to know these features, also where it cannot be opened already."""
    logged = {"readerFeatures": features, "writerFeatures": [*features, "changeDataFeed"]}
    last = max((table / "_delta_log").glob("*.json"))
    text = json.dumps({"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **logged}})
    last.with_name(f"{int(last.stem) + 1:020}.json").write_text(text)


def test_a_table_that_wants_more_of_its_readers_is_refused(tmp_path: Path, table: Path) -> None:
    run = all_read(tmp_path, table)
    wants(table, "typeWidening-preview")
    for _ in range(2):
        with pytest.raises(TableError, match="DROP FEATURE 'typeWidening-preview', or"):
            run.plan()
        run.restart()


def test_a_version_of_which_something_is_not_known_is_not_reported_as_cleaned_up(tmp_path: Path, table: Path) -> None:
    run = all_read(tmp_path, table)
    begin = run.version
    wants(table, "somethingNew")
    wants(table, "timestampNtz")
    run.catch_up()
    assert run.version == begin + 2
    upstream = DeltaUpstream(parse({"path": str(table), "keyColumns": "id"}))
    logged = f"version {begin + 1} cannot be read here: .* the feature somethingNew.*DROP FEATURE somethingNew;"
    with pytest.raises(UnknownFeatureError, match=logged) as refused:
        upstream.span(str(begin + 1), "latest")
    assert "cleaned up" not in str(refused.value)
    assert upstream.span(str(begin), "latest").after == str(begin)


def test_a_table_that_a_catalog_manages_is_refused_with_the_way_out(tmp_path: Path, table: Path) -> None:
    """Its log has the commits that were published; later ones may be known to the catalog alone."""
    run = all_read(tmp_path, table)
    wants(table, "catalogManaged")
    for _ in range(2):
        with pytest.raises(UnknownFeatureError, match=r"a catalog manages .* Name a copy"):
            run.plan()
        run.restart()
    begin = run.version
    wants(table, "timestampNtz")
    run.catch_up()
    upstream = DeltaUpstream(parse({"path": str(table), "keyColumns": "id"}))
    with pytest.raises(UnknownFeatureError, match=f"version {begin + 1} cannot be read here: a catalog manages"):
        upstream.span(str(begin + 1), "latest")


def test_a_feature_that_rows_are_not_read_with_is_reported_with_the_way_out(tmp_path: Path, table: Path) -> None:
    run = all_read(tmp_path, table)
    wants(table, "vacuumProtocolCheck")
    [file] = pa.table(DeltaTable(table).get_add_actions())["path"].to_pylist()
    vectors.commit(table, [{"remove": {"path": file, "dataChange": True, "deletionTimestamp": 1}}])
    assert run.plan()
    assert [row["id"] for row in run.read()] == list(range(10))
    other = DeltaRun(tmp_path / "other", table)
    with pytest.raises(TableError, match=r"the feature vacuumProtocolCheck.* DROP FEATURE vacuumProtocolCheck;"):
        other.plan()
    options = {"path": str(table), "keyColumns": "id", "stateDir": str(tmp_path / "state")}
    assert any("vacuumProtocolCheck" in finding.what for finding in examine(parse(options, streaming=True)))
    found = examine(parse({**options, "startupMode": "latest"}, streaming=True))
    assert not any(finding.refuses for finding in found)


@pytest.mark.parametrize("written_at", ["2026-01-31T12:00:00Z", {"seconds": 1}, None])
def test_what_a_writer_says_of_a_commit_may_be_anything(tmp_path: Path, table: Path, written_at: Any) -> None:
    run = all_read(tmp_path, table)
    vectors.commit(table, [{"commitInfo": {"timestamp": written_at}}])
    DeltaTable(table).delete("id = 1")
    run.catch_up()
    run.restart()
    run.catch_up()
    assert run.fold.counts == {"delete": 1}


def test_a_line_of_a_commit_may_name_kinds_with_null_values(tmp_path: Path, table: Path) -> None:
    run = all_read(tmp_path, table)
    DeltaTable(table).delete("id = 1")
    commit = max((table / "_delta_log").glob("*.json"))
    kinds = dict.fromkeys(("commitInfo", "add", "remove", "cdc", "metaData", "protocol", "txn"))
    actions = map(json.loads, commit.read_text().splitlines())
    commit.write_text("\n".join(json.dumps({**kinds, **action}) for action in actions))
    run.catch_up()
    assert run.fold.counts == {"delete": 1}
