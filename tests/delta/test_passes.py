"""How often a reader of several key ranges goes through a table's files."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from backfill.upstream.delta.keys.columns import KeyColumn, KeyColumns
from backfill.upstream.delta.snapshot.passes import passes
from backfill.upstream.delta.snapshot.rows import rows_within
from backfill.upstream.delta.snapshot.scan import scanned
from backfill.vnode import KeyRange, ranges_between

FILES = 8
ROWS = 80


def _dates(numbers: list[int]) -> pa.Array[Any]:
    return pa.array([date(2026, 1, 1) + timedelta(number) for number in numbers])


def _times(numbers: list[int]) -> pa.Array[Any]:
    return pa.array([datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=number) for number in numbers])


KINDS: dict[str, Any] = {
    "whole numbers": lambda numbers: pa.array(numbers, pa.int64()),
    "texts": lambda numbers: pa.array([f"k{number:03}" for number in numbers]),
    "decimals": lambda numbers: pa.array([Decimal(number).scaleb(-2) for number in numbers], pa.decimal128(9, 2)),
    "dates": _dates,
    "times": _times,
    "local times": lambda numbers: _times(numbers).cast(pa.timestamp("us")),
    "bytes": lambda numbers: pa.array([number.to_bytes(2) for number in numbers]),
}


@pytest.mark.parametrize("by", [[], ["part"], ["id"]], ids=["", "in partitions", "the key is that of the partitions"])
@pytest.mark.parametrize("clustered", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_ranges_are_read_at_once_where_each_would_look_at_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, by: list[str], *, clustered: bool
) -> None:
    numbers = list(range(ROWS)) if clustered else Random(1).sample(range(ROWS), ROWS)
    for first in range(0, ROWS, ROWS // FILES):
        some = numbers[first : first + ROWS // FILES]
        rows = pa.table({"id": KINDS[kind](some), "n": pa.array(some, pa.int64()), "part": [first] * len(some)})
        write_deltalake(tmp_path, rows, mode="append", partition_by=by or None)
    table = DeltaTable(tmp_path)
    columns = pa.schema([pa.field("id", KINDS[kind]([0]).type), pa.field("n", pa.int64())])
    key = KeyColumns((KeyColumn.of(columns.field("id")),))
    bounds = key.texts(pa.record_batch([KINDS[kind]([9, 19, 29, 39, 49, 59, 69])], ["id"]))
    ranges = ranges_between(bounds)
    scans = _scans(monkeypatch)
    found = pa.Table.from_batches(rows_within(table, columns, key, ranges, ""), columns)
    assert found["n"].to_pylist() == list(range(ROWS))
    together = by != ["id"] and (kind == "bytes" or not clustered)  # Files have no statistics of bytes.
    assert scans.count(True) == (1 if together else len(ranges))


def _scans(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Returns a list that gets an item for each pass through files: True, unless it was for a few rows only."""
    scans: list[bool] = []

    def watched(*given: Any, **named: Any) -> pa.RecordBatchReader:
        scans.append("most" not in named)
        return scanned(*given, **named)

    monkeypatch.setattr("backfill.upstream.delta.snapshot.rows.scanned", watched)
    return scans


def test_ranges_that_do_not_ascend_are_read_in_their_own_order(tmp_path: Path) -> None:
    for some in ([0, 3], [1, 4], [2, 5]):
        write_deltalake(tmp_path, pa.table({"id": pa.array(some, pa.int64())}), mode="append")
    key = KeyColumns((KeyColumn("id", pa.int64()),))
    first, second, third = ranges_between([("1",), ("3",)])
    ranges: list[KeyRange] = [second, first, third]
    assert passes(DeltaTable(tmp_path), key, ranges) == [(second,), (first,), (third,)]
    found = pa.Table.from_batches(rows_within(DeltaTable(tmp_path), key.schema, key, ranges, ""), key.schema)
    assert found["id"].to_pylist() == [2, 3, 0, 1, 4, 5]


def test_a_structs_field_is_not_taken_for_a_column_with_a_dot_in_its_name(tmp_path: Path) -> None:
    for first in (0, 3, 6):
        some = range(first, first + 3)
        rows = pa.table({"a.b": pa.array(some, pa.int64()), "a": [{"b": 100 - number} for number in some]})
        write_deltalake(tmp_path, rows, mode="append")
    columns = pa.schema([pa.field("a.b", pa.int64())])
    key = KeyColumns((KeyColumn.of(columns.field(0)),))
    found = rows_within(DeltaTable(tmp_path), columns, key, ranges_between([("2",), ("5",)]), "")
    assert [row["a.b"] for batch in found for row in batch.to_pylist()] == list(range(9))


@pytest.mark.parametrize("mapping", ["none", "name"])
@pytest.mark.parametrize("zone", ["UTC", None])
def test_times_of_one_millisecond_in_a_far_future_keep_their_microseconds(
    tmp_path: Path, zone: str | None, mapping: str
) -> None:
    """In their place deltalake gives what a file's statistics say, which is cut to milliseconds."""
    kind = pa.timestamp("us", zone)
    columns = pa.schema([pa.field("id", kind)])
    DeltaTable.create(tmp_path, schema=columns, configuration={"delta.columnMapping.mode": mapping})
    times = [253_400_000_000_000_561 + 1_000_007_000 * file for file in range(20)]
    for time in times:
        rows = pa.table({"id": pa.array([time, time + 1, time + 2], pa.int64()).cast(kind)})
        write_deltalake(tmp_path, rows, mode="append")
    key = KeyColumns((KeyColumn.of(columns.field("id")),))
    ranges = ranges_between([(str(times[5]),), (str(times[10] + 1),)])
    table = DeltaTable(tmp_path)
    assert len(passes(table, key, ranges)) == len(ranges)
    found = rows_within(table, columns, key, ranges, "")
    numbers = [number for batch in found for number in batch["id"].cast(pa.int64()).to_pylist()]
    assert numbers == [time + more for time in times for more in range(3)]


@pytest.mark.parametrize("mapping", ["none", "name"])
def test_texts_that_are_escapes_in_the_log_are_what_the_files_have(tmp_path: Path, mapping: str) -> None:
    """deltalake misreads such a text in a file's statistics as a lesser one, and gives that if a file has only one."""
    columns = pa.schema([pa.field("id", pa.string())])
    DeltaTable.create(tmp_path, schema=columns, configuration={"delta.columnMapping.mode": mapping})
    for texts in (["a", "\U00020bb7"], ["\U00020bb8"], ["\U0001f600", "\U0010ffff"]):
        write_deltalake(tmp_path, pa.table({"id": texts}), mode="append")
    for commit in (tmp_path / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        commit.write_text("\n".join(map(json.dumps, actions)))
    table, key = DeltaTable(tmp_path), KeyColumns((KeyColumn.of(columns.field("id")),))
    ranges = ranges_between([("b",), ("\U00020000",), ("\U00100000",)])
    found = [row["id"] for item in ranges for row in _rows(table, columns, key, item)]
    assert found == ["a", "\U0001f600", "\U00020bb7", "\U00020bb8", "\U0010ffff"]


def _rows(table: DeltaTable, columns: pa.Schema, key: KeyColumns, item: KeyRange) -> list[dict[str, Any]]:
    return [row for batch in rows_within(table, columns, key, [item], "") for row in batch.to_pylist()]
