"""Keys placed by Arrow's order, against the order of Python's tuples."""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill.arrow.order import differ, passed, within

Key = tuple[Any, ...]

TYPES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), st.sampled_from([-(2**63), -1, 0, 1, 2**53, 2**53 + 1, 2**63 - 1])),
    (pa.int16(), st.integers(-2, 2)),
    (pa.bool_(), st.booleans()),
    (pa.decimal128(38, 10), st.sampled_from([Decimal("-1.5"), Decimal(0), Decimal("0.0000000001"), Decimal(10**27)])),
    (pa.binary(), st.sampled_from([b"", b"\x00", b"a", b"a\x00", b"\xff"])),
    (pa.date32(), st.sampled_from([dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(9999, 12, 31)])),
    (
        pa.timestamp("us"),
        st.sampled_from([dt.datetime(1969, 12, 31, 23, 59, 59, 999_999), dt.datetime(2024, 2, 29)]),  # noqa: DTZ001 - PostgreSQL's timestamp has no zone
    ),
]


@st.composite
def tables(draw: st.DrawFn) -> tuple[pa.Schema, list[Key], Key | None, Key | None]:
    """Draws keys of one to three columns, and two ends, each of which may be open and need not be a key."""
    kinds = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=3))
    fields: list[pa.Field[Any]] = [pa.field(f"k{at}", kind) for at, (kind, _) in enumerate(kinds)]
    keys = st.tuples(*[values for _, values in kinds])
    return pa.schema(fields), draw(st.lists(keys, max_size=12)), draw(st.none() | keys), draw(st.none() | keys)


def batch(schema: pa.Schema, keys: list[Key]) -> pa.RecordBatch:
    columns = [pa.array([key[at] for key in keys], field.type) for at, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@given(tables())
def test_a_key_is_within_as_tuples_compare(case: tuple[pa.Schema, list[Key], Key | None, Key | None]) -> None:
    schema, keys, after, upto = case
    found = within(
        batch(schema, keys),
        None if after is None else batch(schema, [after]),
        None if upto is None else batch(schema, [upto]),
    )
    expected = [(after is None or after < key) and (upto is None or key <= upto) for key in keys]
    assert found.to_pylist() == expected


@st.composite
def placed(draw: st.DrawFn) -> tuple[pa.Schema, list[Key], list[Key]]:
    """Draws keys of one to three columns, and bounds in order, which may be keys and may be there twice."""
    schema, keys, _, _ = draw(tables())
    values = dict(TYPES)
    kinds = st.tuples(*[values[field.type] for field in schema])
    return schema, keys, sorted(draw(st.lists(kinds | st.sampled_from(keys or [draw(kinds)]), max_size=40)))


@given(placed())
def test_a_key_has_passed_the_bounds_that_are_less(case: tuple[pa.Schema, list[Key], list[Key]]) -> None:
    schema, keys, bounds = case
    found = passed(batch(schema, keys), batch(schema, bounds))
    assert found.tolist() == [bisect_left(bounds, key) for key in keys]


@pytest.mark.parametrize(
    ("key", "inside"),
    [((1, 2), False), ((1, 3), True), ((2, 0), True), ((3, 1), True), ((3, 2), False)],
)
def test_the_lower_end_is_outside_and_the_upper_end_is_inside(key: Key, inside: bool) -> None:
    fields: list[pa.Field[Any]] = [pa.field("a", pa.int64()), pa.field("b", pa.int64())]
    schema = pa.schema(fields)
    found = within(batch(schema, [key]), batch(schema, [(1, 2)]), batch(schema, [(3, 1)]))
    assert found.to_pylist() == [inside]


def test_no_keys_are_placed_without_complaint() -> None:
    schema = pa.schema([pa.field("a", pa.string())])
    assert within(batch(schema, []), batch(schema, [("x",)]), None).to_pylist() == []


def test_nan_is_one_value_and_differs_from_every_other() -> None:
    nan = float("nan")
    one, other = pa.array([nan, nan, 1.0, 1.0, 1.0]), pa.array([nan, 1.0, nan, 2.0, 1.0])
    assert differ(one, other).tolist() == [False, True, True, True, False]
