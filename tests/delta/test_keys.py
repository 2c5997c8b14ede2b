"""Keys as a person writes them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from backfill.errors import KeyTextError
from backfill.upstream.delta.keys.columns import MANY_RANGES, KeyColumn, KeyColumns
from backfill.vnode import Key, KeyRange

ZONED = pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("kind", "given", "kept"),
    [
        (pa.date32(), "1970-01-11", "10"),
        (pa.timestamp("us"), "1970-01-01", "0"),
        (pa.timestamp("us"), "1970-01-01 00:00:01.5", "1500000"),
        (ZONED, "1970-01-01T00:00:01Z", "1000000"),
        (ZONED, "1970-01-01 02:00:01+02", "1000000"),
        (pa.decimal128(10, 2), "12.5", "12.5"),
        (pa.binary(), "00FF", "00ff"),
        (pa.int64(), "007", "7"),
        (pa.string(), "007", "007"),
    ],
    ids=str,
)
def test_a_key_that_a_person_writes_is_the_text_of_that_key(kind: pa.DataType, given: str, kept: str) -> None:
    assert KeyColumns((KeyColumn("k", kind),)).canonical((given,)) == (kept,)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (pa.date32(), "1970-01-11 10:00:00"),
        (pa.timestamp("us"), "1970-01-01T00:00:00Z"),
        (ZONED, "1970-01-01 00:00:00"),
        (pa.decimal128(10, 2), "12.345"),
        (pa.binary(), "0"),
        (pa.int8(), "128"),
        (pa.int64(), "secret"),
    ],
    ids=str,
)
def test_what_is_no_key_is_refused_with_what_is_expected_and_without_the_value(kind: pa.DataType, given: str) -> None:
    key = KeyColumns((KeyColumn("j", pa.string()), KeyColumn("k", kind)))
    with pytest.raises(KeyTextError) as caught:
        key.canonical(("word", given))
    assert f"j string; k {kind}" in str(caught.value)
    assert ("such as 2026-01-31T12:00:00Z" in str(caught.value)) == (kind == ZONED)
    assert "secret" not in str(caught.value)


def test_a_key_of_another_number_of_columns_is_refused() -> None:
    with pytest.raises(KeyTextError, match=r"a key has 2 values, and the table's key is \(k\)"):
        KeyColumns((KeyColumn("k", pa.int64()),)).canonical(("1", "2"))


@pytest.mark.parametrize("begin", [None, ("b", "0")])
@pytest.mark.parametrize("end", [None, ("w", "1")])
def test_keys_are_in_many_ranges_as_in_each_by_itself(begin: Key | None, end: Key | None) -> None:
    key = KeyColumns((KeyColumn("a", pa.string()), KeyColumn("b", pa.int64())))
    bounds: list[Key] = [("m", str(number)) for number in range(10, 10 + 4 * MANY_RANGES)]
    ends = [begin, *bounds[:-2], end]
    ranges = tuple(KeyRange(*pair) for pair in zip(ends[::2], ends[1::2], strict=True))
    assert len(ranges) >= MANY_RANGES
    keys = [*((text, number) for text in "abmwz" for number in range(-1, 15 + 4 * MANY_RANGES)), ("m", None), (None, 1)]
    given = pa.RecordBatch.from_arrays(
        [pa.array([text for text, _ in keys], pa.string()), pa.array([number for _, number in keys], pa.int64())],
        names=["a", "b"],
    )
    for batch in (given, given.slice(0, len(keys) - 2), given.slice(0, 0)):
        each = [key.covered(batch, (item,)).to_pylist() for item in ranges]
        found = key.covered(batch, ranges).to_pylist()
        assert found == [None if None in among else any(among) for among in zip(*each, strict=True)]
