"""Rows of a Delta table are found by their keys, whatever type these have, and other files are not read."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from decimal import Context, Decimal
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from backfill.arrow.batches import coalesced
from backfill.errors import OptionsError, TableError, UnchangedToastError, UnsupportedTypeError
from backfill.sinks.delta import apply_to
from backfill.sinks.delta.merge import KEYS_AT_ONCE
from tests.collected import Rows
from tests.sinks.batches import Apply, batch_of, content, made_of, row


def test_a_nan_is_one_key_in_whatever_form_it_comes(tmp_path: Path) -> None:
    def rows(*changes: tuple[int, str, str | None]) -> Rows:
        keys = np.array([bits for bits, _, _ in changes], np.uint64).view(np.float64)
        values = pa.array([value for _, _, value in changes], pa.string())
        return made_of([kind for _, kind, _ in changes], k=keys, v=values)

    one, other = 0x7FF8000000000000, 0xFFF8000000000000
    apply = apply_to(path=str(tmp_path), key=["k"], query="q")
    apply(rows((other, "insert", "1")), 0)
    apply(rows((other, "delete", None), (one, "insert", "2")), 1)
    apply(rows((other, "update_postimage", "3")), 2)
    assert [row[1] for row in content(tmp_path)] == ["3"]
    apply(rows((one, "delete", None), (0, "insert", "zero")), 3)
    assert [row[1] for row in content(tmp_path)] == ["zero"]
    apply(rows((one, "insert", "4"), (1 << 63, "update_postimage", "minus zero")), 4)
    assert sorted(row[1] for row in content(tmp_path)) == ["4", "minus zero"]


@pytest.mark.parametrize(
    ("kind", "keys"),
    [(pa.float32(), [1.0, 2.0]), (pa.int32(), ["1", "2"]), (pa.decimal128(9, 2), ["1.0", "2.00"])],
    ids=str,
)
def test_keys_that_may_be_one_in_the_target_are_refused_from_the_first_batch_on(
    tmp_path: Path, kind: pa.DataType, keys: list[object]
) -> None:
    DeltaTable.create(tmp_path, schema=pa.schema([("k", kind), ("v", pa.int64())]))
    rows = made_of(["insert"] * 2, k=keys, v=[1, 2])
    with pytest.raises(TableError, match=r"may make different values of the source, .* equal"):
        apply_to(path=str(tmp_path), key=["k"], query="q")(rows, 0)
    assert content(tmp_path) == []


@pytest.mark.parametrize(
    ("kind", "keys"),
    [(pa.int64(), pa.array([1, 2], pa.int16())), (pa.decimal128(9, 2), pa.array([1, 2], pa.decimal128(5, 1)))],
    ids=str,
)
def test_a_key_may_be_of_a_larger_type_in_the_target(tmp_path: Path, kind: pa.DataType, keys: pa.Array[Any]) -> None:
    DeltaTable.create(tmp_path, schema=pa.schema([("k", kind), ("v", pa.int64())]))
    rows = made_of(["insert"] * 2, k=keys, v=[1, 2])
    apply_to(path=str(tmp_path), key=["k"], query="q")(rows, 0)
    assert sorted(row[1] for row in content(tmp_path)) == [1, 2]


def test_a_key_is_of_single_values(tmp_path: Path) -> None:
    rows = made_of(["insert"], k=[[1]])
    with pytest.raises(OptionsError, match=r"the key column k is a list<.*int64>; expected one of single values"):
        apply_to(path=str(tmp_path), key=["k"], query="q")(rows, 0)


def test_large_values_stay_where_the_key_is_narrower_in_the_table(tmp_path: Path, apply: Apply) -> None:
    columns: list[tuple[str, pa.DataType]] = [("a", pa.int32()), *((name, pa.string()) for name in "bvw")]
    DeltaTable.create(tmp_path, schema=pa.schema(columns))
    apply(batch_of(row("insert", 1, "x", "1")), 0)
    apply(batch_of(row("update_postimage", 1, "x", "2", ["w"])), 1)
    assert content(tmp_path) == [(1, "x", "2", "1")]


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (b"x", UnsupportedTypeError, "column 'raw' has the type binary and partitions the table"),
        ("", TableError, "the key column raw partitions the Delta table and is '' in a row"),
        (Decimal("-0.07"), TableError, "column raw partitions the Delta table and is negative, with a fraction"),
        ("__HIVE_DEFAULT_PARTITION__", TableError, "which is the name of deltalake's folder for nulls"),
    ],
)
def test_a_row_that_would_not_be_found_in_its_partition_is_refused(
    tmp_path: Path, value: Any, error: type[Exception], message: str
) -> None:
    rows = made_of(["insert"], a=[1], raw=[value])
    DeltaTable.create(tmp_path, schema=rows.table.select(["a", "raw"]).schema, partition_by=["raw"])
    with pytest.raises(error, match=message):
        apply_to(path=str(tmp_path), key=["a", "raw"], query="q")(rows, 0)


def test_a_table_may_be_partitioned_by_a_column_that_the_batch_has_not(tmp_path: Path, apply: Apply) -> None:
    columns = [pa.field(name, pa.int64() if name == "a" else pa.string()) for name in ("a", "b", "v", "w", "region")]
    DeltaTable.create(tmp_path, schema=pa.schema(columns), partition_by=["region"])
    apply(batch_of(row("insert", 1, "x", "1"), row("insert", 2, "x", "2")), 0)
    apply(batch_of(row("update_postimage", 1, "x", "3"), row("delete", 2, "x", None)), 1)
    assert content(tmp_path) == [(1, "x", "3", "3", None)]


@pytest.mark.parametrize("none", ["", [], ()])
def test_a_key_has_columns(tmp_path: Path, none: list[str]) -> None:
    with pytest.raises(OptionsError, match=r"such as key=\['id'\]"):
        apply_to(path=str(tmp_path), key=none, query="q")


def test_a_key_is_a_list_of_columns(tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match=r"expected a list of columns, such as key=\['id'\]"):
        apply_to(path=str(tmp_path), key="id", query="q")


def test_the_keys_of_the_target_are_not_held_all_at_once(
    tmp_path: Path, apply: Apply, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come in batches, and those of every batch are looked at."""
    looked_at: list[int] = []

    def few(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
        assert rows == KEYS_AT_ONCE
        for each in coalesced(batches, 1):
            looked_at.append(each.num_rows)
            yield each

    monkeypatch.setattr(import_module("backfill.sinks.delta.merge"), "coalesced", few)
    for number in range(3):
        apply(batch_of(row("insert", number, "x", "1")), number)
    apply(batch_of(row("update_postimage", 0, "x", "2", ["w"]), row("update_postimage", 2, "x", "2", ["w"])), 3)
    assert content(tmp_path) == [(0, "x", "2", "1"), (1, "x", "1", "1"), (2, "x", "2", "1")]
    assert set(looked_at) == {1}
    with pytest.raises(UnchangedToastError):
        apply(batch_of(row("update_postimage", 2, "x", "3", ["w"]), row("update_postimage", 2, "y", "3", ["w"])), 4)


@pytest.mark.parametrize("unchanged", [None, ["w"]], ids=["whole rows", "large values stay"])
def test_files_without_keys_of_the_batch_are_not_read(
    tmp_path: Path, apply: Apply, unchanged: list[str] | None
) -> None:
    """The test takes a file away: a merge that succeeds without it has not looked at it."""
    apply(batch_of(row("insert", 1, "x", "1")), 0)
    first = set(tmp_path.glob("*.parquet"))
    apply(batch_of(row("insert", 5, "x", "1"), row("insert", 6, "x", "1")), 1)
    second = set(tmp_path.glob("*.parquet")) - first
    for file in first:
        file.rename(file.with_suffix(".gone"))
    changed = row("update_postimage", 6, "x", "2", unchanged)
    apply(batch_of(row("delete", 5, "x", "1"), changed, row("insert", 7, "x", "2")), 2)
    for file in first:
        file.with_suffix(".gone").rename(file)
    for file in second:
        file.unlink()
    assert content(tmp_path) == [(1, "x", "1", "1"), (6, "x", "2", "1" if unchanged else "2"), (7, "x", "2", "2")]


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
@pytest.mark.parametrize("second", [[math.nan], [math.nan, 1.5]])
def test_nan_which_statistics_do_not_know_is_found_as_a_key(
    tmp_path: Path, kind: pa.DataType, second: list[float]
) -> None:
    apply = apply_to(path=str(tmp_path), key=["a"], query="q")
    for number, keys in enumerate([[1.5, math.nan], second]):
        rows = batch_of(*[row("update_postimage", 0, "x", str(number)) for _ in keys])
        apply(rows.having(a=pa.array(keys, kind)), number)
        assert len(content(tmp_path)) == 2


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_a_value_is_kept_where_the_sign_of_a_zero_in_the_key_changes(tmp_path: Path, kind: pa.DataType) -> None:
    apply = apply_to(path=str(tmp_path), key=["a"], query="q")
    for number, (zero, unchanged) in enumerate([(0.0, None), (-0.0, ["w"]), (0.0, ["w"])]):
        rows = batch_of(row("update_postimage", 0, "x", str(number), unchanged))
        apply(rows.having(a=pa.array([zero], kind)), number)
        ((found, *values),) = content(tmp_path)
        assert (math.copysign(1, found), values) == (math.copysign(1, zero), ["x", str(number), "0"])


@pytest.mark.parametrize(("digits", "scale"), [(15, 2), (16, 2), (19, 0), (20, 4), (38, 0)])
def test_a_key_of_more_digits_than_statistics_have_is_found(tmp_path: Path, digits: int, scale: int) -> None:
    keys = [Decimal(10**digits - 5 + at).scaleb(-scale, Context(digits)) for at in range(5)]
    apply = apply_to(path=str(tmp_path), key=["a"], query="q")
    for number, change_type in enumerate(["insert", "update_postimage", "delete"]):
        rows = batch_of(*[row(change_type, 0, "x", str(number)) for _ in keys])
        apply(rows.having(a=pa.array(keys, pa.decimal128(digits, scale))), number)
        assert [found[0] for found in content(tmp_path)] == ([] if change_type == "delete" else keys)


def test_large_values_stay_in_a_table_with_arrays(tmp_path: Path, apply: Apply) -> None:
    """Rows are joined by their keys alone, since not every type can be joined."""
    apply(batch_of(row("insert", 1, "x", "1")).having(tags=[[1]]), 0)
    apply(batch_of(row("update_postimage", 1, "x", "2", ["w"])).having(tags=[[1]]), 1)
    assert content(tmp_path) == [(1, "x", "2", "1", [1])]


@pytest.mark.parametrize("cut", [False, True], ids=["as it is", "as Spark has it"])
@pytest.mark.parametrize("year", [7000, 9999])
def test_a_row_is_found_by_a_time_that_is_far_off(tmp_path: Path, year: int, cut: bool) -> None:
    """Spark cuts times to milliseconds in a file's statistics."""
    far = pa.array([datetime(year, 6, 1, 0, 0, 0, 2664, tzinfo=UTC)], pa.timestamp("us", "UTC"))
    apply = apply_to(path=str(tmp_path), key=["a"], query="q")
    for number, change in enumerate(["insert", "update_postimage", "delete"]):
        apply(made_of([change], a=far), number)
        if cut:
            commit = tmp_path / f"_delta_log/{number + 1:020}.json"
            commit.write_text(re.sub(r"(\.002)664", r"\1", commit.read_text()))
        assert len(content(tmp_path)) == (change != "delete")


def test_a_row_is_found_by_a_text_that_is_an_escape_in_the_log(tmp_path: Path) -> None:
    """deltalake misreads such a text in a file's statistics as a lesser one."""
    apply = apply_to(path=str(tmp_path), key=["a"], query="q")
    for number, change in enumerate(["insert", "update_postimage", "delete"]):
        apply(made_of([change], a=["\U00020bb7"]), number)
        commit = tmp_path / f"_delta_log/{number + 1:020}.json"
        commit.write_text("\n".join(json.dumps(json.loads(line)) for line in commit.read_text().splitlines()))
        assert len(content(tmp_path)) == (change != "delete")
