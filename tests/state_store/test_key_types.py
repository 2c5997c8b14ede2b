"""A key's values come back as they went in, to the ends of their types' ranges."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from backfill_state import Barrier, ProgressStore, StateLayoutError
from backfill_state.keytypes import to_arrow, to_duckdb
from tests.state_store.streams import bounds_table, rows_of, stream, table

_INT32 = (-(2**31), -(2**31) + 1, -1, 0, 2**31 - 2, 2**31 - 1)
_INT64 = (-(2**63), -(2**63) + 1, -1, 0, 2**63 - 2, 2**63 - 1)


def _raw(values: tuple[int, ...], storage: pa.DataType, kind: pa.DataType) -> pa.Array[Any]:
    """Makes an array from stored numbers, since Python's dates and times end long before Arrow's."""
    return pa.array(values, storage).view(kind)


KEYS = [
    pa.array([-(2**7), 0, 2**7 - 1], pa.int8()),
    pa.array([-(2**15), 0, 2**15 - 1], pa.int16()),
    pa.array(_INT32, pa.int32()),
    pa.array(_INT64, pa.int64()),
    pa.array([0, 2**8 - 1], pa.uint8()),
    pa.array([0, 2**16 - 1], pa.uint16()),
    pa.array([0, 2**32 - 1], pa.uint32()),
    pa.array([0, 2**64 - 1], pa.uint64()),
    pa.array([1e-45, -3.4028234663852886e38, float("inf"), -float("inf"), 0.1], pa.float32()),
    pa.array([5e-324, -1.7976931348623157e308, float("inf"), 0.1 + 0.2], pa.float64()),
    pa.array([False, True], pa.bool_()),
    pa.array(["", " ", "a\0b", "e\u0301", "\u00e9", "\U0010ffff", "'; --", "x" * 5000], pa.string()),
    pa.array([b"", b"\0", b"\xff\xfe", bytes(range(256))], pa.binary()),
    _raw(_INT32, pa.int32(), pa.date32()),
    _raw((0, 1, 86_399_999_999, 86_400_000_000), pa.int64(), pa.time64("us")),
    _raw((0, 1, 86_399_999_999_999, 86_400_000_000_000), pa.int64(), pa.time64("ns")),
    _raw(_INT64, pa.int64(), pa.timestamp("us")),
    _raw(_INT64, pa.int64(), pa.timestamp("us", tz="UTC")),
    pa.array([Decimal(-9), Decimal(9)], pa.decimal128(1, 0)),
    pa.array([Decimal("0.01"), Decimal("-99999999.99")], pa.decimal128(10, 2)),
    pa.array([Decimal("9" * 38), Decimal("-" + "9" * 38)], pa.decimal128(38, 0)),
    pa.array([Decimal("0." + "9" * 38), Decimal("0." + "0" * 37 + "1")], pa.decimal128(38, 38)),
]


@pytest.mark.parametrize("values", KEYS, ids=lambda values: str(values.type))
def test_a_key_comes_back_as_it_was(
    store: ProgressStore, values: pa.Array[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    key = pa.schema([pa.field("id", values.type)])
    with_none = pa.concat_arrays([values, pa.nulls(1, values.type)])
    vnodes = pa.array(range(len(with_none)), pa.int32())
    flags, counts = pa.array([False] * len(vnodes)), pa.nulls(len(vnodes), pa.int64())
    bounds = pa.Table.from_arrays([vnodes, with_none], names=["vnode", "id"])
    names = ["vnode", "id", "backfill_finished", "row_count"]
    moved = Barrier(1, "", pa.Table.from_arrays([vnodes, with_none, flags, counts], names=names))
    store.begin(stream(key=key))
    store.set_bounds(bounds)
    store.commit(moved)
    assert store.identity() == stream(key=key)
    assert store.bounds() == bounds
    assert store.progress() == moved.changed


def test_not_a_number_and_minus_nought_come_back_as_they_were(store: ProgressStore) -> None:
    key = pa.schema([pa.field("x", pa.float64())])
    store.begin(stream(key=key))
    store.set_bounds(bounds_table([(0, float("nan")), (1, -0.0)], key))
    assert [str(row[1]) for row in rows_of(store.bounds())] == ["nan", "-0.0"]


@pytest.mark.parametrize("values", KEYS, ids=lambda values: str(values.type))
def test_a_stored_type_is_the_arrow_type_it_came_from(values: pa.Array[Any]) -> None:
    assert to_arrow(to_duckdb("id", values.type)) == values.type


@pytest.mark.parametrize(
    "unsupported",
    [
        pa.timestamp("ns"),
        pa.timestamp("us", tz="Europe/Paris"),
        pa.time32("ms"),
        pa.decimal128(5, -2),
        pa.decimal128(2, 5),
        pa.decimal256(40, 0),
        pa.large_string(),
        pa.list_(pa.int32()),
        pa.null(),
    ],
    ids=str,
)
def test_a_type_that_would_lose_something_is_refused_by_column_name(unsupported: pa.DataType) -> None:
    with pytest.raises(StateLayoutError, match=r"key column 'odd' has type .* it holds int8"):
        stream(key=pa.schema([pa.field("odd", unsupported)]))


def test_a_key_has_columns_and_names_each_once() -> None:
    with pytest.raises(StateLayoutError, match="at least one column"):
        stream(key=pa.schema([]))
    with pytest.raises(StateLayoutError, match="zero character"):
        stream(key=pa.schema([pa.field("a\0b", pa.int8())]))
    with pytest.raises(StateLayoutError, match="names each column once"):
        stream(key=pa.schema([pa.field("a", pa.int8()), pa.field("a", pa.int8())]))


@pytest.mark.parametrize(
    "names",
    [
        ["vnode"],
        ["VNode", "BACKFILL_FINISHED", "row_count"],
        ["id", "ID", "Id", "id_"],
        ["vnode_", "vnode", "VNODE"],
        ['quo"te', "semi;colon", "", " ", "\u00e9", "select", "rowid"],
        ["given", "backfill_progress", "stream"],
        ["\u00df", "ss", "SS", "\u0130", "i"],
    ],
)
def test_key_columns_may_have_any_names(store: ProgressStore, names: list[str]) -> None:
    key = pa.schema([pa.field(name, pa.int64()) for name in names])
    row = tuple(range(10, 10 + len(names)))
    moved = Barrier(
        1,
        "",
        table(
            [(0, *row, True, 7)],
            [pa.int32(), *key.types, pa.bool_(), pa.int64()],
            ["vnode", *names, "backfill_finished", "row_count"],
        ),
    )
    store.begin(stream(key=key))
    store.set_bounds(bounds_table([(0, *row)], key))
    store.commit(moved)
    assert store.identity() == stream(key=key)
    assert store.progress() == moved.changed
    assert store.bounds() == bounds_table([(0, *row)], key)
