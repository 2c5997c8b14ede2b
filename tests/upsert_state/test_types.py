"""Every type comes back from a DuckDB file bit by bit, also from slices and below lists, structs and maps."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from backfill_state import StateLayoutError
from backfill_state.upsert import DuckDBUpsertState, Updates, UpsertLayout
from backfill_state.upsert.codec import restore, store, stored_type
from backfill_state.upsert.sizes import value_sizes


def bits(values: list[int], width: str, arrow: Any) -> pa.Array[Any]:
    """Makes an array from bits, for values that no Python value stands for."""
    return pa.concat_arrays([pa.array(np.array(values, width)).view(arrow), pa.nulls(1, arrow)])


ENDS = [2**63 - 1, -(2**63), 0]
DATES = pa.list_(pa.field("day", pa.date32(), nullable=True))
ARRAYS: list[pa.Array[Any]] = [
    *(
        pa.array([0, None, np.iinfo(f"{sign}int{width}").max], f"{sign}int{width}")
        for sign in ("", "u")
        for width in (8, 16, 32, 64)
    ),
    bits([1, 0x8000, 0x7E01], "u2", pa.float16()),
    bits([1, 0x80000000, 0x7FC00001, 0xFF800001], "u4", pa.float32()),
    bits([1, 1 << 63, 0x7FF8000000000001, 0xFFF0000000000001], "u8", pa.float64()),
    pa.array([True, None, False]),
    pa.array(["a\0é", None, ""]),
    pa.array(["a" * 40, None], pa.large_string()),
    pa.array(["a" * 40, None, "b"], pa.string_view()),
    pa.array([b"\0\xff", None, b""]),
    pa.array([b"\0" * 40, None], pa.binary_view()),
    pa.array([b"abc", None], pa.binary(3)),
    pa.array([Decimal("-9.5"), None, Decimal("9" * 36 + ".99")], pa.decimal128(38, 2)),
    pa.array([Decimal(1200), None], pa.decimal128(10, -2)),
    pa.array([Decimal("-" + "9" * 60 + ".123"), None], pa.decimal256(76, 3)),
    pa.array([Decimal("1.20"), None], pa.decimal32(9, 2)),
    pa.array([Decimal("-1.20"), None], pa.decimal64(18, 2)),
    bits([2**31 - 1, -(2**31), -(2**31) + 1], "i4", pa.date32()),
    bits([86_400_000, 0], "i8", pa.date64()),
    bits([5], "i4", pa.time32("ms")),
    bits([86_399_999_999_999], "i8", pa.time64("ns")),
    bits(ENDS, "i8", pa.timestamp("us")),
    bits(ENDS, "i8", pa.timestamp("ns", "Europe/Berlin")),
    bits(ENDS, "i8", pa.duration("s")),
    pa.array([(1, -2, 3), None, (-1, 0, 2**62)], pa.month_day_nano_interval()),
    pa.nulls(3),
    pa.array([{"a": 1, "b": None}, None, {"a": None, "b": "x"}], pa.struct([("a", pa.int8()), ("b", pa.string())])),
    pa.array([{}, None], pa.struct([])),
    pa.StructArray.from_arrays([pa.array([1, 2]), pa.array([3.0, None])], ["same", "same"]),
    pa.array([[1.5, None], None, [], [-0.0]], pa.list_(pa.float32())),
    pa.array([[[1], None], None, [], [[2, 3], []]], pa.large_list(pa.list_(pa.int8()))),
    pa.array([[1, 2], None, [3, None]], pa.list_(pa.int16(), 2)),
    pa.array([[("k", [0]), ("k", None)], None, []], pa.map_(pa.string(), DATES)),
    pa.array([[{"a": [Decimal(1)]}], None], pa.list_(pa.struct([("a", pa.list_(pa.decimal256(50, 0)))]))),
    pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0123456789abcdef", None], pa.binary(16))),
]


def as_stored(array: pa.Array[Any]) -> Any:
    return store(array, stored_type("c", array.type))


def plain(array: pa.Array[Any]) -> str:
    """Returns the array's values as text, in which NaN equals itself and -0.0 does not equal 0.0."""
    return str(as_stored(array).to_pylist())


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: str(array.type))
def test_what_is_stored_is_restored(array: pa.Array[Any]) -> None:
    for given in (array, pa.concat_arrays([array, array]).slice(1, len(array)), array.slice(0, 0)):
        stored = as_stored(given)
        assert stored.type == stored_type("c", array.type)
        restored = restore(stored, array.type)
        restored.validate(full=True)
        assert restored.type == array.type
        assert plain(restored) == plain(given)


def test_rows_of_every_type_come_back_from_a_file(tmp_path: Path) -> None:
    key, row = (
        pa.schema([pa.field("id", pa.int64())]),
        pa.schema([pa.field(f"c{at}", array.type) for at, array in enumerate(ARRAYS)]),
    )
    count = 5
    columns = [pa.concat_arrays([array] * count).slice(0, count) for array in ARRAYS]
    rows = pa.Table.from_arrays(columns, schema=row)
    zeros = pa.array([0] * count, pa.int64())
    heads = pa.table({"order_key": zeros, "order_tie": zeros, "present": pa.array([True] * count)})
    keys = pa.table({"id": pa.array(range(count), pa.int64())})
    layout = UpsertLayout("s", key, row)
    with DuckDBUpsertState(tmp_path / "upsert.duckdb", layout) as state, state.batch("t"):
        state.multi_put(Updates(keys, heads, rows))
    backwards = pa.array(range(count - 1, -1, -1))
    with DuckDBUpsertState(tmp_path / "upsert.duckdb", layout) as state:
        found = state.multi_get(keys.take(backwards))
    assert found.rows.schema == row
    for got, given in zip(found.rows.columns, columns, strict=True):
        assert plain(got.combine_chunks()) == plain(pa.concat_arrays([given.slice(at, 1) for at in range(4, -1, -1)]))


KEYS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.uint64(), [0, 2**64 - 1]),
    (pa.bool_(), [True, False]),
    (pa.float64(), [0.0, -0.0, float("nan")]),
    (pa.string(), ["", "a", "A", "a "]),
    (pa.binary(), [b"", b"\0", b"\xff"]),
    (pa.decimal128(20, 4), [Decimal("1.0000"), Decimal("-1.0000")]),
    (pa.timestamp("us", "UTC"), [0, 1]),
]


@pytest.mark.parametrize(("arrow", "values"), KEYS, ids=lambda item: str(item) if isinstance(item, pa.DataType) else "")
def test_keys_of_a_type_are_told_apart_bit_by_bit(tmp_path: Path, arrow: pa.DataType, values: list[Any]) -> None:
    schema = pa.schema([pa.field("key", arrow)])
    count = len(values)
    keys = pa.table([pa.array(values, arrow)], schema=schema)
    zeros = pa.array([0] * count, pa.int64())
    heads = pa.table({"order_key": zeros, "order_tie": zeros, "present": pa.array([True] * count)})
    rows = pa.table({"n": pa.array(range(count), pa.int64())})
    layout = UpsertLayout("s", schema, rows.schema)
    with DuckDBUpsertState(tmp_path / "upsert.duckdb", layout) as state:
        with state.batch("t"):
            assert state.multi_put(Updates(keys, heads, rows)).inserts == count
        assert state.multi_get(keys).rows == rows


def test_a_type_that_cannot_be_held_is_refused_by_column() -> None:
    union = pa.sparse_union([pa.field("a", pa.int8()), pa.field("b", pa.string())])
    one = pa.schema([pa.field("a", pa.int8())])
    coded = pa.dictionary(pa.int32(), pa.string())
    runs = pa.run_end_encoded(pa.int32(), pa.string())
    for arrow in (union, pa.list_(union), coded, pa.list_(coded), runs, pa.list_(pa.int8(), 0)):
        with pytest.raises(StateLayoutError, match="column 'wrong' has type"):
            UpsertLayout("s", one, pa.schema([pa.field("wrong", arrow)]))


class Unregistered(pa.ExtensionType):
    """An extension type that Arrow reads back as its storage."""

    def __init__(self) -> None:
        super().__init__(pa.int64(), "unregistered")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> Unregistered:
        assert (storage, serialized) == (pa.int64(), b"")
        return cls()


def test_a_type_that_a_file_would_not_tell_again_is_refused_by_column() -> None:
    one = pa.schema([pa.field("a", pa.int8())])
    for key, row in ((one, pa.schema([pa.field("b", Unregistered())])), (pa.schema([("b", Unregistered())]), one)):
        with pytest.raises(StateLayoutError, match=r"column 'b' has type .*register the extension type"):
            UpsertLayout("s", key, row)


def test_a_nested_key_is_refused() -> None:
    with pytest.raises(StateLayoutError, match="key column 'k' has type list"):
        UpsertLayout("s", pa.schema([pa.field("k", pa.list_(pa.int8()))]), pa.schema([pa.field("a", pa.int8())]))


def test_a_size_is_the_bytes_that_a_value_holds() -> None:
    nested = pa.list_(pa.struct([("a", pa.int32()), ("b", pa.string())]))
    array = pa.array([[{"a": 1, "b": "xyz"}, None, {"a": None, "b": "é"}], None, [], [{"a": 1, "b": None}]], nested)
    assert value_sizes(as_stored(array)).tolist() == [4 + 3 + 2, 0, 0, 4]
    assert value_sizes(as_stored(array.slice(2))).tolist() == [0, 4]
    assert value_sizes(as_stored(pa.array([True, None]))).tolist() == [1, 0]
    assert value_sizes(as_stored(pa.array([Decimal(1), None], pa.decimal256(50, 0)))).tolist() == [32, 0]
