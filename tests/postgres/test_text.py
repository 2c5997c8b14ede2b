"""Text of output functions, read by whole arrays, against Python's reading of one value at a time."""

from __future__ import annotations

import math
import struct
from datetime import UTC, date, datetime, time
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from backfill.upstream.postgres.values.text import UnreadableTextError, format_decimal, format_hex, parse_text

TEXTS = [pa.string(), pa.binary()]


def rows(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.none() | values, max_size=20)


def as_text(texts: list[str | None], kind: pa.DataType) -> pa.Array[Any]:
    """Makes an array of the texts that does not begin where its buffers begin."""
    raw = [None if text is None else text.encode() for text in ["before", None, *texts, "after"]]
    return pa.array(raw, pa.binary()).cast(kind).slice(2, len(texts))


def read(texts: list[str | None], to: pa.DataType, kind: pa.DataType) -> list[Any]:
    parsed = parse_text(as_text(texts, kind), to)
    parsed.validate(full=True)
    assert parsed.type == to
    return parsed.to_pylist()


@given(rows(st.integers(-(2**63), 2**63 - 1)), st.sampled_from(TEXTS))
def test_integers_are_read_as_written(values: list[int | None], kind: pa.DataType) -> None:
    assert read([None if value is None else str(value) for value in values], pa.int64(), kind) == values


@given(rows(st.booleans()), st.sampled_from(TEXTS))
def test_booleans_are_read_as_written(values: list[bool | None], kind: pa.DataType) -> None:
    assert read([None if value is None else "ft"[value] for value in values], pa.bool_(), kind) == values


def same_bits(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return (math.isnan(one) and math.isnan(other)) or struct.pack(">d", one) == struct.pack(">d", other)


def float_text(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(value).removesuffix(".0")


@given(rows(st.floats()), st.sampled_from(TEXTS))
def test_doubles_are_read_to_the_last_bit(values: list[float | None], kind: pa.DataType) -> None:
    found = read([None if value is None else float_text(value) for value in values], pa.float64(), kind)
    assert all(map(same_bits, found, values))


@given(rows(st.floats(width=32)), st.sampled_from(TEXTS))
def test_floats_are_read_to_the_last_bit(values: list[float | None], kind: pa.DataType) -> None:
    # A float is written here with a double's digits, which are more than enough for it.
    found = read([None if value is None else float_text(value) for value in values], pa.float32(), kind)
    assert all(map(same_bits, found, values))


@given(rows(st.dates()), st.sampled_from(TEXTS))
def test_dates_are_read_as_written(values: list[date | None], kind: pa.DataType) -> None:
    assert read([None if value is None else value.isoformat() for value in values], pa.date32(), kind) == values


def seconds(value: datetime | time) -> str:
    """Writes the time of day with as many digits as PostgreSQL does: no more than needed."""
    text = value.strftime("%H:%M:%S")
    return text + f".{value.microsecond:06}".rstrip("0") if value.microsecond else text


def moment(value: datetime) -> str:
    return f"{value.date().isoformat()} {seconds(value)}"


@given(rows(st.datetimes()), st.sampled_from(TEXTS))
def test_timestamps_are_read_as_written(values: list[datetime | None], kind: pa.DataType) -> None:
    assert read([None if value is None else moment(value) for value in values], pa.timestamp("us"), kind) == values


@given(rows(st.datetimes(timezones=st.just(UTC))), st.sampled_from(TEXTS))
def test_timestamps_with_time_zone_are_read_in_utc(values: list[datetime | None], kind: pa.DataType) -> None:
    texts = [None if value is None else moment(value) + "+00" for value in values]
    assert read(texts, pa.timestamp("us", tz="UTC"), kind) == values


@given(rows(st.times()), st.sampled_from(TEXTS))
def test_times_are_read_as_written(values: list[time | None], kind: pa.DataType) -> None:
    found = parse_text(as_text([None if v is None else seconds(v) for v in values], kind), pa.time64("ns"))
    assert found.type == pa.time64("ns")
    assert found.cast(pa.time64("us")).to_pylist() == values


@given(rows(st.decimals(places=2, min_value=-(10**10), max_value=10**10)), st.sampled_from(TEXTS))
def test_decimals_are_read_exactly_or_refused(values: list[Decimal | None], kind: pa.DataType) -> None:
    texts = [None if value is None else f"{value:f}" for value in values]
    if any(value is not None and abs(value) >= 10**10 for value in values):
        with pytest.raises(UnreadableTextError):
            read(texts, pa.decimal128(12, 2), kind)
    else:
        assert read(texts, pa.decimal128(12, 2), kind) == values


DIGITS = st.text("0123456789", max_size=45)


@example("-", "50", "8311309304655261561931432354604895506", 0, (38, 36))
@example("", "539909441929059709", "999069980999070290092", 0, (38, 20))
@example("", "0", "35", 0, (37, 37))
@example("", "0", "1", 40, (38, 1))
@example("", "999999999999999999999999999950", "", 0, (38, 8))
@given(
    st.sampled_from(["", "-"]),
    DIGITS.map(lambda digits: digits.lstrip("0") or "0"),
    DIGITS,
    st.integers(0, 45),
    st.one_of(st.just(38), st.integers(1, 38)).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, p))),
)
def test_a_decimal_is_the_number_that_was_written_or_refused_if_it_does_not_fit(
    sign: str, whole: str, part: str, zeros: int, to: tuple[int, int]
) -> None:
    text = f"{sign}{whole}.{part}{'0' * zeros}".rstrip(".")
    value = Decimal(text)
    precision, scale = to
    units = value.scaleb(scale, Context(prec=200))
    if units == units.to_integral_value() and units.copy_abs() < 10**precision:  # abs() rounds to 28 digits.
        assert read([text], pa.decimal128(*to), pa.string()) == [value]
    else:
        with pytest.raises(UnreadableTextError):
            read([text], pa.decimal128(*to), pa.string())


@given(rows(st.binary()), st.sampled_from(TEXTS))
def test_bytea_is_read_from_hex(values: list[bytes | None], kind: pa.DataType) -> None:
    texts = [None if value is None else "\\x" + value.hex() for value in values]
    assert read(texts, pa.binary(), kind) == values


@given(rows(st.binary()))
def test_bytes_are_written_as_bytea_writes_them(values: list[bytes | None]) -> None:
    array = pa.array([b"before", None, *values], pa.binary()).slice(2)
    written = format_hex(array)
    written.validate(full=True)
    assert written.to_pylist() == [None if value is None else "\\x" + value.hex() for value in values]


@given(rows(st.text()), st.sampled_from(TEXTS))
def test_text_stays_as_it_is(values: list[str | None], kind: pa.DataType) -> None:
    assert read(values, pa.string(), kind) == values


BEYOND = ["infinity", "-infinity", "10000-01-01", "0044-03-15 BC", "5874897-12-31"]
DECIMAL = pa.decimal128(12, 2)


@pytest.mark.parametrize(
    ("text", "to"),
    [
        *((text, pa.date32()) for text in BEYOND),
        *((text.replace(" BC", " 00:00:00 BC"), pa.timestamp("us")) for text in BEYOND),
        ("10000-01-01 00:00:00", pa.timestamp("us")),
        ("infinity", pa.timestamp("us", tz="UTC")),
        ("10000-01-01 00:00:00+00", pa.timestamp("us", tz="UTC")),
        ("0044-03-15 00:00:00+00 BC", pa.timestamp("us", tz="UTC")),
        ("24:00:00", pa.time64("ns")),
        *((text, DECIMAL) for text in ("NaN", "Infinity", "-Infinity", "1.505", "10000000000.00")),
        ("true", pa.bool_()),
        ("9223372036854775808", pa.int64()),
        ("\\x0", pa.binary()),
        ("\\x0g", pa.binary()),
        ("\\000", pa.binary()),
        ("", pa.binary()),
    ],
)
def test_a_text_without_a_value_is_refused_and_not_quoted(text: str, to: pa.DataType) -> None:
    with pytest.raises(UnreadableTextError) as caught:
        parse_text(pa.array([None, text], pa.string()), to)
    if len(text) > 8:
        assert text not in str(caught.value)
    # Arrow's own message quotes the value, and Spark prints whole chains.
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_bytes_that_are_not_utf8_are_refused_as_text() -> None:
    with pytest.raises(UnreadableTextError, match="not UTF-8"):
        parse_text(pa.array([b"\xff"], pa.binary()), pa.string())


def test_what_stands_under_a_null_does_not_matter() -> None:
    offsets = pa.py_buffer(struct.pack("<4i", 0, 4, 8, 12))
    data = pa.py_buffer(b"\\xAAjunk\\xBB")
    text = pa.Array.from_buffers(pa.string(), 3, [pa.py_buffer(b"\x05"), offsets, data])
    assert parse_text(text, pa.binary()).to_pylist() == [b"\xaa", None, b"\xbb"]


@given(st.integers(0, 38).flatmap(lambda scale: st.tuples(st.just(scale), rows(st.integers(1 - 10**38, 10**38 - 1)))))
def test_decimals_are_written_with_all_their_digits(case: tuple[int, list[int | None]]) -> None:
    scale, units = case
    values = [None if unit is None else Decimal(unit).scaleb(-scale, Context(prec=38)) for unit in units]
    array = pa.array([None, *values], pa.decimal128(38, scale)).slice(1)
    assert format_decimal(array).to_pylist() == [
        None if value is None else f"{value:f}".replace("-0", "0") if not value else f"{value:f}" for value in values
    ]
