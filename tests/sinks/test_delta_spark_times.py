"""A Delta table that Spark has written, with times as it has them in Parquet: INT96."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from backfill.errors import TableError
from backfill.sinks.delta import apply_to
from backfill.sinks.delta.spark_times import SparkTimes
from tests.delta import vectors
from tests.sinks.batches import made_of

TIME = pa.timestamp("us", "UTC")
FAR, NEAR = datetime(9999, 12, 31, tzinfo=UTC), datetime(2026, 2, 3, tzinfo=UTC)
NESTED: dict[str, tuple[pa.DataType, Any]] = {
    "plain": (TIME, lambda time: time),
    "list": (pa.list_(TIME), lambda time: [None, time]),
    "map": (pa.map_(pa.string(), TIME), lambda time: [("k", time)]),
    "map by times": (pa.map_(TIME, TIME), lambda time: [(NEAR, time)]),
    "struct": (pa.struct([pa.field("x", pa.list_(TIME))]), lambda time: {"x": [time]}),
}


NO_MORE: Mapping[str, str] = {}


def written(
    table: Path,
    kind: pa.DataType,
    value: Any,
    *,
    old: bool = False,
    stats: str = "{}",
    metadata: Mapping[str, str] = NO_MORE,
) -> None:
    """Makes a table of the columns `a` and `t`, with row 1 in a file as Spark writes it; `said` is its metadata."""
    rows = pa.table({"a": pa.array([1], pa.int64()), "t": pa.array([value], kind)})
    DeltaTable.create(table, schema=rows.schema)
    file = table / "a b.parquet"
    with pq.ParquetWriter(file, rows.schema, use_deprecated_int96_timestamps=old, store_schema=False) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata({f"org.apache.spark.{name}": text for name, text in metadata.items()})
    add = {"path": "a%20b.parquet", "partitionValues": {}, "size": file.stat().st_size, "modificationTime": 1}
    vectors.commit(table, [{"add": {**add, "dataChange": True, "stats": stats}}])


def apply(table: Path, kind: Any) -> None:
    """Applies a batch with another row."""
    apply_to(path=str(table), key=["a"], query="q")(made_of(["insert"], a=[2], t=pa.nulls(1, kind)), 0)


@pytest.mark.parametrize("name", NESTED)
def test_a_file_of_which_a_merge_would_change_the_times_is_refused(tmp_path: Path, name: str) -> None:
    kind, nested = NESTED[name]
    written(tmp_path, kind, nested(FAR), old=True)
    with pytest.raises(TableError, match=r"the file a b.parquet of .* was written by Spark with times before 1678"):
        apply(tmp_path, kind)
    assert DeltaTable(tmp_path).version() == 1


@pytest.mark.parametrize("name", NESTED)
@pytest.mark.parametrize(("time", "old"), [(NEAR, True), (FAR, False)], ids=["near times", "microseconds"])
def test_files_whose_times_stay_are_merged_with(tmp_path: Path, name: str, time: datetime, *, old: bool) -> None:
    kind, nested = NESTED[name]
    written(tmp_path, kind, nested(time), old=old)
    apply(tmp_path, kind)
    assert sorted(found["a"] for found in pa.table(DeltaTable(tmp_path).scan()).to_pylist()) == [1, 2]


def test_a_file_is_not_looked_at_where_statistics_say_enough(tmp_path: Path) -> None:
    near = '"minValues":{"t":"2026-02-03T00:00:00.000Z"},"maxValues":{"t":"2026-02-03T00:00:00.000Z"}'
    written(tmp_path, TIME, FAR, old=True, stats=f'{{"numRecords":1,{near},"nullCount":{{"t":0}}}}')
    apply(tmp_path, TIME)
    assert DeltaTable(tmp_path).version() == 2


@pytest.mark.parametrize(
    ("least", "greatest"),
    [
        ("2026-02-03T00:00:00.000Z", "9999-12-31T00:00:00.000Z"),
        ("0001-01-01T00:00:00.000Z", "2026-02-03T00:00:00.000Z"),
    ],
)
def test_a_file_is_looked_at_where_statistics_have_far_times(tmp_path: Path, least: str, greatest: str) -> None:
    ends = f'"minValues":{{"t":"{least}"}},"maxValues":{{"t":"{greatest}"}}'
    written(tmp_path, TIME, FAR, old=True, stats=f'{{"numRecords":1,{ends},"nullCount":{{"t":0}}}}')
    with pytest.raises(TableError, match="was written by Spark with times before 1678"):
        apply(tmp_path, TIME)


DAY = pa.date32()
BEFORE_3 = {"version": "2.4.8"}
AS_BEFORE_3 = {"version": "4.3.0", "legacyDateTime": ""}


@pytest.mark.parametrize(
    ("kind", "value", "metadata", "old"),
    [
        (DAY, date(1582, 10, 4), AS_BEFORE_3, False),
        (DAY, date(1, 1, 1), BEFORE_3, False),
        (pa.struct([pa.field("x", pa.list_(DAY))]), {"x": [date(1, 1, 1)]}, AS_BEFORE_3, False),
        (TIME, datetime(1899, 12, 31, tzinfo=UTC), AS_BEFORE_3, False),
        (TIME, datetime(1899, 12, 31, tzinfo=UTC), {"version": "3.0.3"}, True),
        (TIME, datetime(1899, 12, 31, tzinfo=UTC), {"legacyINT96": ""}, True),
    ],
)
def test_a_file_of_the_calendar_of_before_spark_3_is_refused(
    tmp_path: Path, kind: pa.DataType, value: Any, metadata: Mapping[str, str], *, old: bool
) -> None:
    """Spark takes a day of such a file for the one that was meant, and deltalake for another one."""
    written(tmp_path, kind, value, old=old, metadata=metadata)
    with pytest.raises(TableError, match=r"the file a b.parquet of .* 1582, or times before 1900, .* = CORRECTED"):
        apply(tmp_path, kind)
    assert DeltaTable(tmp_path).version() == 1


@pytest.mark.parametrize(("least", "refused"), [("1582-10-15", False), ("1582-10-14", True)])
def test_statistics_say_which_days_a_file_has(tmp_path: Path, least: str, *, refused: bool) -> None:
    ends = f'"minValues":{{"t":"{least}"}},"maxValues":{{"t":"9999-12-31"}}'
    stats = f'{{"numRecords":1,{ends},"nullCount":{{"t":0}}}}'
    written(tmp_path, DAY, date(1, 1, 1), stats=stats, metadata=AS_BEFORE_3)
    with pytest.raises(TableError) if refused else nullcontext():
        apply(tmp_path, DAY)


@pytest.mark.parametrize(
    ("kind", "value", "metadata"),
    [
        (DAY, date(1582, 10, 15), AS_BEFORE_3),
        (DAY, date(1, 1, 1), {"version": "3.5.0"}),
        (DAY, date(1, 1, 1), {}),
        (DAY, date(1, 1, 1), {"version": "3.0.3"}),
        (DAY, date(9999, 12, 31), BEFORE_3),
        (TIME, datetime(1900, 1, 1, tzinfo=UTC), BEFORE_3),
        (TIME, datetime(1899, 12, 31, tzinfo=UTC), {"legacyINT96": ""}),
    ],
)
def test_files_of_one_calendar_are_merged_with(
    tmp_path: Path, kind: pa.DataType, value: Any, metadata: Mapping[str, str]
) -> None:
    written(tmp_path, kind, value, metadata=metadata)
    apply(tmp_path, kind)
    assert [found["t"] for found in pa.table(DeltaTable(tmp_path).scan()).to_pylist() if found["a"] == 1] == [value]


def test_a_file_without_a_time_is_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, TIME, None, old=True, stats='{"numRecords":1,"nullCount":{"t":1}}')
    monkeypatch.setattr("backfill.sinks.delta.spark_times.Files.open", None)
    SparkTimes({}).require_kept(DeltaTable(tmp_path))


def test_files_that_the_table_has_not_any_more_are_forgotten(tmp_path: Path) -> None:
    """A query may go on for months, and each of its batches writes files anew."""
    written(tmp_path, TIME, NEAR, old=True)
    seen = SparkTimes({}, {"written anew since"})
    seen.require_kept(DeltaTable(tmp_path))
    assert seen.kept == {"a%20b.parquet"}


def test_a_structs_field_is_not_taken_for_a_column_with_a_dot_in_its_name(tmp_path: Path) -> None:
    numbers = pa.array([{"t": 1}], pa.struct([pa.field("t", pa.int64())]))
    write_deltalake(tmp_path, pa.table({"a.t": pa.array([NEAR], TIME), "a": numbers}))
    SparkTimes({}).require_kept(DeltaTable(tmp_path))
