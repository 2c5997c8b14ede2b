"""Every type is carried without loss, by the snapshot and by changes; as a key, and as a partition's value."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from backfill.errors import UnknownFeatureError, UnsupportedTypeError
from backfill.options import parse
from backfill.plan import Measure
from backfill.upstream.delta import DeltaUpstream
from backfill.vnode import Key, KeyRange, ranges_between
from tests.delta import vectors
from tests.delta.laboratory import FEED
from tests.delta.stream import DeltaRun

ZONED, NAIVE = pa.timestamp("us", tz="UTC"), pa.timestamp("us")
LONG = "x" * 100


def at(year: int, microsecond: int = 0) -> datetime:
    return datetime(year, 1, 2, 3, 4, 5, microsecond, tzinfo=UTC)


def naive(*values: datetime) -> list[datetime]:
    return [value.replace(tzinfo=None) for value in values]


ORDERED: dict[str, tuple[pa.DataType, list[Any]]] = {
    "byte": (pa.int8(), [-128, -1, 0, 1, 126, 127]),
    "short": (pa.int16(), [-(2**15), -1, 0, 1, 300, 2**15 - 1]),
    "integer": (pa.int32(), [-(2**31), -1, 0, 1, 70_000, 2**31 - 1]),
    "long": (pa.int64(), [-(2**63), -1, 0, 2**53, 2**53 + 1, 2**63 - 1]),
    "text": (
        pa.string(),
        ["", " ", "'", "10", "9", "B", "a", "a\0b", f"{LONG}1", f"{LONG}2", "é", "ﬀ", "𝄞", "\U0010ffff"],
    ),
    "bytes": (pa.binary(), [b"", b"\0", b"\0\1", b"a", b"\x7f", b"\x80", b"\xff\xff"]),
    "date": (pa.date32(), [date(1, 1, 1), date(1969, 12, 31), date(1970, 1, 1), date(2026, 2, 3), date(9999, 12, 31)]),
    "time": (ZONED, [at(1), at(1969, 1), at(2026, 1000), at(2026, 1001), at(2026, 1999), at(2026, 2000), at(9999)]),
    "local time": (NAIVE, naive(at(1), at(1969, 1), at(2026, 1001), at(2026, 1999), at(2026, 2000), at(9999))),
    "short decimal": (
        pa.decimal128(10, 2),
        [Decimal(text) for text in ("-99999999.99", "-0.01", "0.00", "0.01", "1.10")],
    ),
    "long decimal": (
        pa.decimal128(38, 0),
        [
            Decimal(text)
            for text in ("-5", "0", "12345678901234567890123456789012345677", "12345678901234567890123456789012345678")
        ],
    ),
    "fine decimal": (
        pa.decimal128(38, 10),
        [Decimal(text) for text in ("-5", "12345678901234567890.1234567889", "12345678901234567890.1234567890")],
    ),
}

POINT = pa.struct([pa.field("x", pa.float64()), pa.field("names", pa.list_(pa.string()))])
OTHER: dict[str, tuple[pa.DataType, list[Any]]] = {
    "boolean": (pa.bool_(), [True, False]),
    "float": (pa.float32(), [1.5, float("-inf"), float("nan")]),
    "double": (pa.float64(), [0.0, -0.0, 5e-324, float("inf"), float("nan")]),
    "list": (pa.list_(pa.int32()), [[], [1, None], [1, 2]]),
    "lists": (pa.list_(pa.list_(pa.string())), [[[]], [None, ["a"]], [["a", None]]]),
    "map": (pa.map_(pa.string(), pa.int64()), [[], [("a", 1)], [("a", None)], [("a", 1), ("b", 2)]]),
    "struct": (POINT, [{"x": 1.0, "names": []}, {"x": None, "names": None}, {"x": float("nan"), "names": ["a", None]}]),
}


def made(folder: Path, values: list[Any], kind: pa.DataType, **options: Any) -> pa.Table:
    """Makes a table of the columns `k` and `n` in two files, neither of them in the order of `k`."""
    table = pa.table({"k": pa.array(values, kind), "n": pa.array(range(len(values)), pa.int64())})
    order = list(range(len(values)))
    Random(1).shuffle(order)
    for part in (order[::2], order[1::2]):
        write_deltalake(folder, table.take(part), mode="append", configuration=FEED, **options)
    return table


@pytest.mark.parametrize("name", ORDERED)
def test_keys_of_every_type_are_read_counted_and_placed_in_one_order(tmp_path: Path, name: str) -> None:
    kind, values = ORDERED[name]
    made(tmp_path, values, kind)
    upstream = DeltaUpstream(parse({"path": str(tmp_path), "keyColumns": "k"}))
    pin = upstream.snapshot_epoch(None, max_changes=1).pin
    assert pin is not None
    reader = upstream.reader()

    def read(item: KeyRange) -> list[Any]:
        return [value for batch in reader.read(pin.token, [item]) for value in batch["k"].to_pylist()]

    assert read(KeyRange(None, None)) == values
    assert [value for item in ranges_between(upstream.bounds(4)) for value in read(item)] == values
    keys: list[Key] = []
    for _ in range(len(values) - 1):
        (extent,) = upstream.measure(pin, [Measure(KeyRange(keys[-1] if keys else None, None), 1)])
        assert extent.last is not None
        keys.append(extent.last)
    assert upstream.typed(keys)["k"].to_pylist() == values[:-1]
    typed = pa.record_batch({"k": pa.array(values, kind)})
    for place, (one, two) in enumerate(pairwise(keys)):
        assert read(KeyRange(one, two)) == [values[place + 1]]
        inside = upstream.covered(typed, (KeyRange(one, two),)).to_pylist()
        assert inside == [at == place + 1 for at in range(len(values))]
        assert upstream.measure(pin, [Measure(KeyRange(None, two), 100)])[0].row_count == place + 2


@pytest.mark.parametrize("name", [*ORDERED, *OTHER])
def test_values_of_every_type_come_with_the_snapshot_and_with_changes(tmp_path: Path, name: str) -> None:
    kind, values = {**ORDERED, **OTHER}[name]
    values = [*values, None]
    table = made(tmp_path / "table", values, kind)
    run = DeltaRun(tmp_path, tmp_path / "table", key=("n",))

    def rows() -> list[Any]:
        run.plan()
        found = run.read()
        run.fold.apply([])
        run.committed += 1
        return found

    found = {row["n"]: row["k"] for row in rows()}
    assert repr([found[n] for n in range(len(values))]) == repr(table["k"].to_pylist())
    assert run.stream().rows.table.columns.field("k").type == kind
    moved = pa.table({"k": table["k"].take([*range(1, len(values)), 0]), "n": table["n"]})
    write_deltalake(tmp_path / "table", moved, mode="overwrite")
    by_kind: dict[str, dict[int, Any]] = {"update_preimage": {}, "update_postimage": {}}
    for row in rows():
        by_kind[row["_change_type"]][row["n"]] = row["k"]
    for side, expected in (("update_preimage", table), ("update_postimage", moved)):
        assert repr([by_kind[side][n] for n in range(len(values))]) == repr(expected["k"].to_pylist())
    write_deltalake(tmp_path / "table", moved, mode="overwrite")
    assert rows() == [], "nothing has changed"


@pytest.mark.parametrize("name", ["long", "text", "date", "time", "local time", "boolean"])
def test_a_partitions_value_is_the_same_in_a_change_as_in_the_snapshot(tmp_path: Path, name: str) -> None:
    kind, values = {**ORDERED, **OTHER}[name]
    values = [*(value for value in values if value not in ("", f"{LONG}1") and value != "a\0b"), None]
    table = made(tmp_path / "table", values, kind, partition_by=["k"])
    run = DeltaRun(tmp_path, tmp_path / "table", key=("n",))
    run.catch_up()
    assert [run.fold.rows[n,]["k"] for n in range(len(values))] == values
    write_deltalake(tmp_path / "table", table.slice(1), mode="overwrite", partition_by=["k"])
    DeltaTable(tmp_path / "table").update(updates={"n": "n + 100"})
    run.catch_up()
    assert [run.fold.rows[n + 100,]["k"] for n in range(1, len(values))] == values[1:]
    assert run.fold.counts["delete"] == len(values)


def test_an_empty_text_that_partitions_a_table_is_null(tmp_path: Path) -> None:
    """Delta cannot tell the two apart; `deltalake` reads an empty text in the rows, and null in their changes."""
    folder = tmp_path / "table"
    made(folder, ["", "a", "", "b"], pa.string(), partition_by=["k"])
    run = DeltaRun(tmp_path, folder, key=("n",))

    def follow() -> None:
        run.plan()
        run.fold.apply(run.read())
        run.committed += 1

    follow()
    write_deltalake(folder, pa.table({"k": ["", "c"], "n": [4, 5]}), mode="append")
    follow()
    DeltaTable(folder).update(updates={"k": "''"}, predicate="n = 1")
    DeltaTable(folder).delete("n = 0")
    follow()
    rows = {1: None, 2: None, 3: "b", 4: None, 5: "c"}
    assert {n: row["k"] for (n,), row in run.fold.rows.items()} == rows
    given = {"path": str(folder), "keyColumns": "n", "filter": "k IS NULL"}
    batches = DeltaUpstream(parse(given)).reader().scan([KeyRange(None, None)])
    assert [n for batch in batches for n in batch["n"].to_pylist()] == [1, 2, 4]


def test_bytes_that_partition_a_table_are_refused(tmp_path: Path) -> None:
    made(tmp_path, [b"a", b"b"], pa.binary(), partition_by=["k"])
    options = {"path": str(tmp_path), "keyColumns": "n"}
    with pytest.raises(UnsupportedTypeError, match="column 'k' has the type binary and partitions the table"):
        DeltaUpstream(parse(options)).schema()
    assert DeltaUpstream(parse({**options, "columns": "n"})).schema().output == ("n",)


def test_bytes_that_partition_a_table_for_a_while_are_refused(tmp_path: Path) -> None:
    """A running stream refuses them, and so does a later one that reads the commits of that while."""
    table = tmp_path / "table"
    rows = pa.table({"k": [b"a", b"\x80"], "n": [1, 2]})
    write_deltalake(table, rows, configuration=FEED)
    run = DeltaRun(tmp_path, table, key=("n",))
    run.catch_up()
    for by in (["k"], []):
        write_deltalake(table, rows, mode="overwrite", schema_mode="overwrite", partition_by=by, configuration=FEED)
        if by:
            with pytest.raises(UnsupportedTypeError, match="column 'k' has the type binary and partitions the table"):
                run.plan()
    run.restart()
    assert run.plan()
    with pytest.raises(UnsupportedTypeError, match="column 'k' has the type binary and partitions the table"):
        run.read()
    run.restart(columns="n")
    assert run.read() == []


def test_a_batch_that_was_planned_when_bytes_partitioned_the_table_is_read_without_them(tmp_path: Path) -> None:
    table = tmp_path / "table"
    rows = pa.table({"k": [b"a", b"\x80"], "n": [1, 2]})
    write_deltalake(table, rows, partition_by=["k"], configuration=FEED)
    run = DeltaRun(tmp_path, table, key=("n",), options={"columns": "n"})
    assert run.plan()
    write_deltalake(table, rows, mode="overwrite", schema_mode="overwrite", partition_by=[], configuration=FEED)
    run.restart(columns="n, k")
    with pytest.raises(UnsupportedTypeError, match="column 'k' has the type binary and partitions the table"):
        run.read()
    run.restart(columns="n")
    assert [row["n"] for row in run.read()] == [1, 2]


def table_with(folder: Path, kind: str) -> dict[str, str]:
    """Makes a table with a column `c` of this type, which no file has, and returns the table's options."""
    write_deltalake(folder, pa.table({"k": [1]}))
    columns = {"k": "long", "c": kind}
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns.items()]
    table = {"id": "x", "format": {"provider": "parquet", "options": {}}, "partitionColumns": [], "configuration": {}}
    vectors.commit(folder, [{"metaData": {**table, "schemaString": json.dumps({"type": "struct", "fields": fields})}}])
    return {"path": str(folder), "keyColumns": "k"}


def test_a_type_that_spark_does_not_have_is_refused_by_name(tmp_path: Path) -> None:
    """The option columns can leave such a column out."""
    options = table_with(tmp_path, "void")
    with pytest.raises(UnsupportedTypeError, match="column 'c' has the type void, which cannot be carried"):
        DeltaUpstream(parse(options)).schema()
    assert DeltaUpstream(parse({**options, "columns": "k"})).schema().output == ("k",)


def test_a_type_that_is_not_known_is_refused_by_name(tmp_path: Path) -> None:
    options = table_with(tmp_path, "geometry(OGC:CRS84)")
    with pytest.raises(UnknownFeatureError, match=r"type: 'geometry\(OGC:CRS84\)' .* Try a newer release"):
        DeltaUpstream(parse(options)).schema()
