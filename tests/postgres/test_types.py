"""Which Arrow type a column becomes, which it may become on request, and what is refused."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from backfill.errors import OptionsError, SchemaChangedError, UnsupportedTypeError, ValueOutOfRangeError
from backfill.upstream.postgres.description import TypeDescription
from backfill.upstream.postgres.values.conversion import decode_text, encode_text, from_change, from_snapshot
from backfill.upstream.postgres.values.types import MappedColumn, Source, map_column, map_columns, snapshot_expression
from tests.postgres.described import array_of, column, numeric, stored

INT4 = stored(23, "int4")
TEXT = stored(25, "text")
DATE = stored(1082, "date")
TIMESTAMP = stored(1114, "timestamp")
TIMESTAMPTZ = stored(1184, "timestamptz")
TIME = stored(1083, "time")
UUID = stored(2950, "uuid")


def list_of(element: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", element))


@pytest.mark.parametrize(
    ("of", "arrow"),
    [
        (numeric(12, 2), pa.decimal128(12, 2)),
        (numeric(38, 0), pa.decimal128(38, 0)),
        (numeric(38, 38), pa.decimal128(38, 38)),
        (numeric(39, 2), pa.string()),
        (numeric(1000, 1000), pa.string()),
        (numeric(2, 5), pa.decimal128(5, 5)),
        (numeric(2, -3), pa.decimal128(5, 0)),
        (numeric(36, -2), pa.decimal128(38, 0)),
        (numeric(36, -3), pa.string()),
        (stored(1700, "numeric"), pa.string()),
        (UUID, pa.string()),
        (array_of(INT4), list_of(pa.int32())),
        (array_of(numeric(12, 2)), list_of(pa.decimal128(12, 2))),
        (array_of(UUID), list_of(pa.string())),
        (array_of(array_of(INT4)), list_of(pa.string())),
        (stored(22, "int2vector"), pa.string()),
    ],
)
def test_a_type_with_arguments_becomes_the_type_that_holds_all_its_values(
    of: TypeDescription, arrow: pa.DataType
) -> None:
    mapped = map_column(column(of))
    assert mapped.arrow == arrow
    assert mapped.source is Source.TEXT


@pytest.mark.parametrize("of", [INT4, UUID, array_of(INT4), numeric(12, 2), stored(26, "oid")])
def test_every_column_can_be_read_as_text(of: TypeDescription) -> None:
    mapped = map_column(column(of), "STRING")
    assert mapped.arrow == pa.string()
    assert mapped.source is Source.TEXT
    assert "_out" in snapshot_expression(mapped).as_string(None)


def test_a_numeric_can_be_read_with_other_digits() -> None:
    assert map_column(column(stored(1700, "numeric")), "DECIMAL(38,10)").arrow == pa.decimal128(38, 10)


@pytest.mark.parametrize(
    ("of", "override"),
    [
        (INT4, "BIGINT"),
        (INT4, "DECIMAL(10,0)"),
        (numeric(12, 2), "DECIMAL(39,0)"),
        (numeric(12, 2), "DECIMAL(5,6)"),
        (numeric(12, 2), "DECIMAL(0,0)"),
        (numeric(12, 2), "DECIMAL"),
        (numeric(12, 2), "DECIMAL(5,-1)"),
    ],
)
def test_any_other_type_is_refused_with_what_is_allowed(of: TypeDescription, override: str) -> None:
    with pytest.raises(OptionsError, match=r"customSchema gives 'c' the type .*; allowed for \w+ is STRING"):
        map_column(column(of), override)


def test_all_problems_of_custom_schema_are_reported_together() -> None:
    with pytest.raises(OptionsError) as caught:
        map_columns([column(INT4, "a"), column(TEXT, "b")], {"a": "INT", "b": "DATE", "d": "STRING"})
    assert all(each in caught.value.message for each in ("'a'", "'b'", "'d'"))


def test_a_pseudo_type_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedTypeError, match=r"'c' .* record"):
        map_column(column(stored(2249, "record", kind="p")))


def test_a_mapped_column_survives_pickling() -> None:
    mapped = map_column(column(array_of(numeric(12, 2))))
    assert pickle.loads(pickle.dumps(mapped)) == mapped  # noqa: S301 - our own


def test_a_type_that_borrows_its_output_function_goes_through_concat() -> None:
    odd = TypeDescription(1790, UUID.name, "b", -1, None, ",", None)
    assert snapshot_expression(map_column(column(odd))).as_string(None) == (
        'CASE WHEN "c" IS DISTINCT FROM NULL THEN pg_catalog.concat("c") END'
    )


def mapped(of: TypeDescription, name: str = "c") -> MappedColumn:
    return map_column(column(of, name), "TIME" if of is TIME else None)


INFINITIES: list[tuple[TypeDescription, pa.DataType, list[int]]] = [
    # The driver makes these of infinity, -infinity, the first and last date, and the days just beyond Spark's range.
    (DATE, pa.int32(), [-2147472692, -2147472691, -2440588 + 10957, 2145042541, -719163, 2932897]),
    (TIMESTAMP, pa.int64(), [-9222425352054775809, -9222425352054775808, -210866803200000000, 253402300800000000]),
    (TIMESTAMPTZ, pa.int64(), [-9222425352054775809, -62135596800000001]),
    (TIME, pa.int64(), [86_400_000_000]),
]


@pytest.mark.parametrize(
    ("of", "raw", "value"), [(of, raw, value) for of, raw, values in INFINITIES for value in values]
)
def test_what_spark_cannot_hold_is_refused_in_the_snapshot(of: TypeDescription, raw: pa.DataType, value: int) -> None:
    target = mapped(of, "When")
    driver = pa.time64("us") if of is TIME else target.arrow
    with pytest.raises(ValueOutOfRangeError) as caught:
        from_snapshot(target, pa.array([0, None, value], raw).view(driver), "")
    assert "'When'" in caught.value.message
    assert '.option("customSchema", "When STRING")' in caught.value.message
    assert str(value) not in caught.value.message


@pytest.mark.parametrize(
    ("of", "first", "last"),
    [
        (DATE, "0001-01-01", "9999-12-31"),
        (TIMESTAMP, "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"),
        (TIMESTAMPTZ, "0001-01-01 00:00:00+00", "9999-12-31 23:59:59.999999+00"),
        (TIME, "00:00:00", "23:59:59.999999"),
    ],
)
def test_the_first_and_last_value_are_the_same_on_both_ways(of: TypeDescription, first: str, last: str) -> None:
    target = mapped(of)
    text = decode_text(target, pa.array([first, None, last]))
    driver = pa.time64("us") if of is TIME else target.arrow
    assert from_snapshot(target, text.cast(driver), "").equals(text)


def test_another_type_than_was_looked_at_is_refused_as_an_altered_table() -> None:
    with pytest.raises(SchemaChangedError, match=r"was int4 when .* now comes as int64, expected int32.* load\(\) "):
        from_snapshot(mapped(INT4), pa.array([1], pa.int64()), "")


@pytest.mark.parametrize(
    ("of", "text"),
    [
        (numeric(12, 2), "NaN"),
        (DATE, "infinity"),
        (array_of(DATE), "{2024-01-01,infinity}"),
        (array_of(INT4), "{{1987},{2}}"),
        (array_of(INT4), "[0:1]={1987,2}"),
    ],
)
def test_a_change_that_spark_cannot_hold_is_refused_by_column(of: TypeDescription, text: str) -> None:
    with pytest.raises(ValueOutOfRangeError) as caught:
        from_change(mapped(of, 'the "price"'), pa.array([text.encode()], pa.binary()))
    assert "price" in caught.value.message
    assert "1987" not in caught.value.message
    assert "customSchema" in caught.value.message


@pytest.mark.parametrize(("of", "text"), [(TEXT, b"caf\xe9"), (UUID, b"\xff"), (array_of(TEXT), b"{a,caf\xe9}")])
@pytest.mark.parametrize("read", [partial(from_snapshot, sent=""), from_change], ids=["snapshot", "change"])
def test_bytes_that_are_no_text_are_refused_and_reading_them_as_text_is_not_advised(
    read: Callable[[MappedColumn, pa.Array[Any]], pa.Array[Any]], of: TypeDescription, text: bytes
) -> None:
    """The driver hands such bytes out as a string without checking them."""
    with pytest.raises(ValueOutOfRangeError, match=r"column 'c'.*not UTF-8.*without the column") as caught:
        read(mapped(of), pa.array([None, text], pa.binary()).view(pa.string()))
    assert "customSchema" not in caught.value.message


@pytest.mark.parametrize(("of", "bits", "raw"), [(701, 64, 0xFFF8000000000000), (700, 32, 0xFFC00001)])
def test_every_nan_of_the_snapshot_is_the_one_of_the_change_log(of: int, bits: int, raw: int) -> None:
    target = mapped(stored(of, f"float{bits // 8}"))
    unsigned: Any = {32: pa.uint32(), 64: pa.uint64()}[bits]
    numbers = pa.array([1.0, None, -0.0], target.arrow).view(unsigned)
    read = from_snapshot(target, pa.concat_arrays([numbers, pa.array([raw], unsigned)]).view(target.arrow), "")
    text = decode_text(target, pa.array(["1", None, "-0", "NaN"]))
    assert read.view(unsigned).equals(text.view(unsigned))


def test_an_empty_array_of_messages_decodes_to_every_type() -> None:
    for of in (
        INT4,
        TEXT,
        DATE,
        TIMESTAMP,
        TIMESTAMPTZ,
        TIME,
        UUID,
        numeric(5, 1),
        array_of(DATE),
        array_of(TEXT),
        stored(17, "bytea"),
    ):
        for rows in (0, 3):
            decoded = decode_text(mapped(of), pa.nulls(rows, pa.binary()))
            decoded.validate(full=True)
            assert decoded.type == mapped(of).arrow
            assert decoded.null_count == len(decoded) == rows


KEYS: list[tuple[TypeDescription, st.SearchStrategy[Any]]] = [
    (stored(16, "bool"), st.sampled_from("tf")),
    (INT4, st.integers(-(2**31), 2**31 - 1).map(str)),
    (stored(701, "float8"), st.floats().map(repr)),
    (numeric(20, 3), st.decimals(places=3, min_value=-(10**9), max_value=10**9).map(str)),
    (numeric(38, 38), st.integers(-(10**37), 10**37).map(lambda digits: f"{'-' * (digits < 0)}0.{abs(digits):038}")),
    (DATE, st.dates().map(str)),
    (TIMESTAMP, st.datetimes().map(str)),
    (TIMESTAMPTZ, st.datetimes().map(lambda value: f"{value}+00")),
    (TIME, st.times().map(str)),
    (stored(17, "bytea"), st.binary().map(lambda value: "\\x" + value.hex())),
    (TEXT, st.text()),
]


@given(st.sampled_from(KEYS).flatmap(lambda each: st.tuples(st.just(each[0]), st.lists(st.none() | each[1]))))
def test_text_made_of_a_key_is_read_as_the_same_key(case: tuple[TypeDescription, list[str | None]]) -> None:
    of, texts = case
    values = decode_text(mapped(of), pa.array(texts, pa.string()))
    again = decode_text(mapped(of), encode_text(values).cast(pa.binary()))
    # NaN does not equal itself as a value, but does as text.
    assert again.to_string() == values.to_string()


def test_a_moment_is_a_text_where_the_system_knows_no_time_zones() -> None:
    """An image without the package tzdata does not know UTC, as no system knows the zone here."""
    moments = pa.array([0, None], pa.timestamp("us", tz="Nowhere/Nothing"))
    assert encode_text(moments).to_pylist() == ["1970-01-01 00:00:00.000000Z", None]


def test_spark_has_the_same_arrow_type_for_each() -> None:
    ours = [*(of for of, _ in KEYS), stored(21, "int2"), stored(700, "float4"), UUID]
    types = [mapped(of).arrow for of in ours]
    schema = pa.schema([(str(place), each) for place, each in enumerate([*types, *map(list_of, types)])])
    assert to_arrow_schema(from_arrow_schema(schema), timezone="UTC").equals(schema)
