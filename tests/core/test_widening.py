"""Which types hold all values of another, checked by casts there and back."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from backfill.arrow.sameness import same
from backfill.arrow.widening import widens

STRUCT = pa.struct([("a", pa.int32()), ("b", pa.string())])
EXTREMES: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [True],
    pa.int8(): [-128, 127],
    pa.int16(): [-(2**15), 2**15 - 1],
    pa.int32(): [-(2**31), 2**31 - 1],
    pa.int64(): [-(2**63), 2**63 - 1],
    pa.float32(): [0.1, 3e38],
    pa.float64(): [0.1, 1e300],
    pa.decimal128(5, 2): [Decimal("999.99")],
    pa.decimal128(7, 2): [Decimal("99999.99")],
    pa.decimal128(12, 4): [Decimal("99999999.9999")],
    pa.decimal128(38, 0): [10**37],
    pa.string(): ["word"],
    pa.large_string(): ["word"],
    pa.binary(): [b"\xff"],
    pa.date32(): [date(2020, 1, 1)],
    pa.timestamp("us"): [1],
    pa.timestamp("us", "UTC"): [1],
    pa.list_(pa.int32()): [[2**31 - 1], []],
    pa.list_(pa.int64()): [[2**63 - 1]],
    pa.map_(pa.string(), pa.int32()): [[("k", 1)]],
    pa.map_(pa.string(), pa.int64()): [[("k", 2**63 - 1)]],
    pa.map_(pa.large_string(), pa.int64()): [[("k", 2**63 - 1)]],
    STRUCT: [{"a": 1, "b": "x"}],
    pa.struct([*STRUCT, ("c", pa.int8())]): [{"a": 1, "b": "x", "c": 1}],
}


@pytest.mark.parametrize("before", EXTREMES, ids=str)
@pytest.mark.parametrize("now", EXTREMES, ids=str)
def test_a_type_that_holds_another_ones_values_gives_them_back(now: pa.DataType, before: pa.DataType) -> None:
    values: Any = pa.array(EXTREMES[before], before)
    if widens(now, before):
        assert same(values.cast(now).cast(before), values).all()
    else:
        assert now != before


@pytest.mark.parametrize(
    ("now", "before"),
    [
        (pa.int64(), pa.int16()),
        (STRUCT, pa.null()),
        (pa.float64(), pa.float32()),
        (pa.float64(), pa.int32()),
        (pa.decimal128(12, 2), pa.int32()),
        (pa.decimal128(12, 4), pa.decimal128(5, 2)),
        (pa.string(), pa.string_view()),
        (pa.binary(), pa.large_binary()),
        (pa.timestamp("us", "UTC"), pa.timestamp("ns", "UTC")),
        (pa.timestamp("us"), pa.date32()),
        (pa.list_(pa.field("element", pa.int64())), pa.large_list(pa.field("item", pa.int32()))),
        (pa.struct([*STRUCT, ("c", pa.int8())]), STRUCT),
    ],
    ids=str,
)
def test_a_wider_type_holds_all_values(now: pa.DataType, before: pa.DataType) -> None:
    assert widens(now, before)


@pytest.mark.parametrize(
    ("now", "before"),
    [
        (pa.int32(), pa.int64()),
        (pa.float64(), pa.int64()),
        (pa.float32(), pa.float64()),
        (pa.decimal128(10, 1), pa.int32()),
        (pa.decimal128(12, 1), pa.decimal128(5, 2)),
        (pa.string(), pa.int32()),
        (pa.int32(), pa.string()),
        (pa.date32(), pa.timestamp("us")),
        (pa.timestamp("us", "UTC"), pa.timestamp("us")),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.timestamp("us", "UTC"), pa.date32()),
        (pa.list_(pa.int32()), pa.list_(pa.int64())),
        (STRUCT, pa.struct([*STRUCT, ("c", pa.int8())])),
    ],
    ids=str,
)
def test_a_narrower_or_another_type_does_not(now: pa.DataType, before: pa.DataType) -> None:
    assert not widens(now, before)
