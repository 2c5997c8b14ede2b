"""Arrays in binary form, parsed by whole columns, against a writer that follows array_send."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from backfill.errors import SchemaChangedError, ValueOutOfRangeError
from backfill.upstream.postgres.values.array_binary import unpack_arrays
from backfill.upstream.postgres.values.conversion import from_snapshot
from backfill.upstream.postgres.values.oids import Oid
from backfill.upstream.postgres.values.text import UnreadableTextError
from backfill.upstream.postgres.values.types import MappedColumn, Source, map_column, snapshot_expression
from tests.postgres.described import array_of, column, stored

List: TypeAlias = "list[Any] | None"

SECOND = 1_000_000
DAYS_TO_2000 = 10_957


@dataclass(frozen=True)
class Sent:
    """A type of elements: as an array's header names it, as its values are sent, and as Arrow has them."""

    oid: int
    form: str
    arrow: pa.DataType
    from_1970: int = 0

    def array(self, elements: list[Any], *, dimensions: int = 1, first: int = 1) -> bytes:
        """Writes an array as array_send does; elements are as in Arrow, but dates and times count from 1970 on."""
        if not elements:
            return struct.pack(">iiI", 0, 0, self.oid)
        head = struct.pack(">iiI", dimensions, int(None in elements), self.oid)
        head += dimensions * struct.pack(">ii", len(elements), first)
        return head + b"".join(map(self._element, elements))

    def _element(self, value: Any) -> bytes:
        if value is None:
            return struct.pack(">i", -1)
        sent = struct.pack(self.form, value - self.from_1970 if self.from_1970 else value)
        return struct.pack(">i", len(sent)) + sent

    def column(self) -> MappedColumn:
        oid, name = ARRAYS[self.oid]
        return map_column(column(array_of(stored(self.oid, name), oid)))


BOOL = Sent(Oid.BOOL, ">?", pa.bool_())
INT2 = Sent(Oid.INT2, ">h", pa.int16())
INT4 = Sent(Oid.INT4, ">i", pa.int32())
INT8 = Sent(Oid.INT8, ">q", pa.int64())
FLOAT4 = Sent(Oid.FLOAT4, ">f", pa.float32())
FLOAT8 = Sent(Oid.FLOAT8, ">d", pa.float64())
DATE = Sent(Oid.DATE, ">i", pa.date32(), DAYS_TO_2000)
TIMESTAMP = Sent(Oid.TIMESTAMP, ">q", pa.timestamp("us"), DAYS_TO_2000 * 86_400 * SECOND)
TIMESTAMPTZ = Sent(Oid.TIMESTAMPTZ, ">q", pa.timestamp("us", tz="UTC"), DAYS_TO_2000 * 86_400 * SECOND)

ARRAYS: dict[int, tuple[int, str]] = {
    Oid.BOOL: (1000, "bool"),
    Oid.INT2: (1005, "int2"),
    Oid.INT4: (1007, "int4"),
    Oid.INT8: (1016, "int8"),
    Oid.FLOAT4: (1021, "float4"),
    Oid.FLOAT8: (1022, "float8"),
    Oid.DATE: (1182, "date"),
    Oid.TIMESTAMP: (1115, "timestamp"),
    Oid.TIMESTAMPTZ: (1185, "timestamptz"),
}
NUMBERS: dict[Sent, st.SearchStrategy[Any]] = {
    BOOL: st.booleans(),
    # Include -1, whose bytes are like the length that stands for a null.
    INT2: st.integers(-(2**15), 2**15 - 1) | st.just(-1),
    INT4: st.integers(-(2**31), 2**31 - 1) | st.just(-1),
    INT8: st.integers(-(2**63), 2**63 - 1) | st.just(-1),
    FLOAT4: st.floats(width=32, allow_nan=False),
    FLOAT8: st.floats(allow_nan=False),
    DATE: st.integers(-719_162, 2_932_896),
    TIMESTAMP: st.integers(-62_135_596_800 * SECOND, 253_402_300_799 * SECOND),
    TIMESTAMPTZ: st.integers(-62_135_596_800 * SECOND, 253_402_300_799 * SECOND),
}


@st.composite
def columns(draw: st.DrawFn) -> tuple[Sent, list[List]]:
    sent, values = draw(st.sampled_from(list(NUMBERS.items())))
    elements = draw(st.sampled_from([values, st.none() | values]))
    return sent, draw(st.lists(st.none() | st.lists(elements, max_size=9), max_size=9))


def packed(sent: Sent, lists: list[List]) -> pa.Array[Any]:
    """Makes a column that does not begin where its buffers begin."""
    values = [None if each is None else sent.array(each) for each in lists]
    return pa.array([b"before", None, *values, b"after"], pa.binary()).slice(2, len(values))


def expected(sent: Sent, lists: list[List]) -> pa.Array[Any]:
    numbers: Any = pa.int32() if sent is DATE else pa.int64() if sent.from_1970 else sent.arrow
    return pa.array(lists, pa.list_(numbers)).cast(sent.column().arrow)


@given(columns())
@example((INT4, [[], [None], None, [-1, None, -1], [1]]))
@example((INT4, [None, None]))
@example((INT2, [[-1, -1, None, -1, -1]]))
@example((BOOL, [[True] * 70 + [None] + [False] * 70]))
def test_a_column_has_the_elements_that_were_sent(drawn: tuple[Sent, list[List]]) -> None:
    sent, lists = drawn
    found = from_snapshot(sent.column(), packed(sent, lists), "bytea")
    found.validate(full=True)
    assert found.equals(expected(sent, lists))


@pytest.mark.parametrize("sent", NUMBERS)
def test_the_statement_asks_for_the_binary_form(sent: Sent) -> None:
    mapped = sent.column()
    assert mapped.source is Source.PACKED
    assert snapshot_expression(mapped).as_string(None) == 'pg_catalog.array_send("c")'


@pytest.mark.parametrize("oid", [26, 1700, 25])
def test_arrays_of_other_types_are_asked_for_as_text(oid: int) -> None:
    assert map_column(column(array_of(stored(oid, "other"), 1028))).source is Source.TEXT


@pytest.mark.parametrize(
    ("array", "problem"),
    [
        (INT4.array([1987, 2], dimensions=2), "more than one dimension"),
        (INT4.array([1987, 2], first=0), "first index is not 1"),
        (INT4.array([1987, None], first=-1), "first index is not 1"),
    ],
)
def test_what_is_no_list_is_refused_by_column(array: bytes, problem: str) -> None:
    with pytest.raises(ValueOutOfRangeError, match=f"column 'c'.*{problem}.*customSchema") as caught:
        from_snapshot(INT4.column(), pa.array([INT4.array([1]), array], pa.binary()), "bytea")
    assert "1987" not in caught.value.message


@pytest.mark.parametrize("sent", [DATE, TIMESTAMP, TIMESTAMPTZ])
@pytest.mark.parametrize("end", [-1, 1])
def test_infinity_is_refused_by_column(sent: Sent, end: int) -> None:
    bits = 8 * struct.calcsize(sent.form)
    infinity = (2 ** (bits - 1) - 1 if end > 0 else -(2 ** (bits - 1))) + sent.from_1970
    with pytest.raises(ValueOutOfRangeError, match=r"column 'c'.*infinity"):
        from_snapshot(sent.column(), pa.array([sent.array([0, infinity])], pa.binary()), "bytea")


def test_every_nan_is_the_one_of_the_change_log() -> None:
    odd = FLOAT8.array([1.0, 2.0])[:-8] + struct.pack(">Q", 0xFFF8000000000000)
    found: Any = from_snapshot(FLOAT8.column(), pa.array([odd], pa.binary()), "bytea")
    assert found.flatten().view(pa.uint64())[1].as_py() == 0x7FF8000000000000


def test_elements_of_another_type_are_refused_as_an_altered_table() -> None:
    array = pa.array([INT4.array([]), FLOAT4.array([1.0])], pa.binary())
    with pytest.raises(SchemaChangedError, match=r"an array of the type 700, expected one of 23.* load\(\) "):
        from_snapshot(INT4.column(), array, "bytea")


def test_an_array_that_breaks_off_is_refused() -> None:
    with pytest.raises(UnreadableTextError, match="not as long as it says"):
        unpack_arrays(pa.array([INT4.array([1, None, 2, 3])[:-8]], pa.binary()), Oid.INT4, pa.int32())
