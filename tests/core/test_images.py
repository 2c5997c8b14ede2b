"""Full images against a reference that takes one change after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill.changes import DELETE, INSERT, OLD_KEY, OLD_NONE, UPDATE, changes_schema
from backfill.events import NO_ORDER, events, timely
from backfill.images import Images, Known, images
from backfill.lookup import looked_up
from backfill.mark import Indices, Mask, halves
from backfill.sameness import same

Key = tuple[str, int]
Value = int | None
Row = tuple[Value, Value]
Told = tuple[str, Key, Row]

_FIELDS: list[pa.Field[Any]] = [
    pa.field("x", pa.int64()),
    pa.field("a", pa.int64()),
    pa.field("y", pa.int64()),
    pa.field("b", pa.string()),
]
COLUMNS = pa.schema(_FIELDS)
KEY = ("b", "a")
VALUES = ("x", "y")


@dataclass(frozen=True)
class Change:
    """`old` is the key before, if it is another one; `left_out` names what the log does not tell of `row`."""

    op: int
    key: Key
    old: Key | None = None
    row: Row = (None, None)
    left_out: frozenset[str] = frozenset()


def record(change: Change) -> dict[str, Any]:
    before = change.key if change.op == DELETE else change.old
    x, y = (None if name in change.left_out else value for name, value in zip(VALUES, change.row, strict=True))
    return {
        "op": change.op,
        "version": 1,
        "timestamp": 0,
        "commit_id": 1,
        "old_kind": OLD_NONE if before is None else OLD_KEY,
        "new": None if change.op == DELETE else struct(change.key, (x, y)),
        "old": None if before is None else struct(before, (None, None)),
        "unchanged": sorted(change.left_out) or None,
    }


def struct(key: Key, row: Row) -> dict[str, Any]:
    return {"x": row[0], "y": row[1], "b": key[0], "a": key[1]}


def apply(change: Change, table: dict[Key, Row]) -> None:
    table.pop(change.key if change.old is None else change.old, None)
    if change.op != DELETE:
        table[change.key] = change.row


def reference(changes: list[Change], sink: dict[Key, Row], emitted: set[Key], *, skips_equal: bool) -> list[Told]:
    """What is told, one change after the other; `sink` is brought up to date."""
    told: list[Told] = []
    for change in changes:
        gone = change.key if change.op == DELETE else change.old
        if gone in sink and gone is not None:
            told.append(("delete", gone, sink.pop(gone)))
        if change.op == DELETE or change.key not in emitted:
            continue
        before = sink.get(change.key)
        sink[change.key] = change.row
        if before is None:
            told.append(("insert", change.key, change.row))
        elif not (skips_equal and before == change.row):
            told += [("update_preimage", change.key, before), ("update_postimage", change.key, change.row)]
    return told


def found_of(
    changes: list[Change], sink: dict[Key, Row], emitted: set[Key], later: dict[Key, Row], *, skips_equal: bool
) -> tuple[list[Told], bool]:
    """What is told, and whether rows had to be looked up; `later` is the table that is looked into."""
    batch = pa.RecordBatch.from_pylist([record(change) for change in changes], schema=changes_schema(COLUMNS))

    def forwarded(keys: pa.RecordBatch, _rows: Indices) -> Mask:
        return np.array([(row["b"], row["a"]) in emitted for row in keys.to_pylist()], np.bool_)

    def look_up(keys: pa.RecordBatch) -> pa.RecordBatch:
        asked = [(row["b"], row["a"]) for row in keys.to_pylist()]
        rows = [struct(key, row) for key, row in sorted(later.items(), reverse=True) if key in asked]
        return pa.RecordBatch.from_pylist(rows, schema=COLUMNS)

    found = halves(batch, key=KEY, forwarded=forwarded)
    looked = False
    while True:
        told = events(batch, found, KEY)
        keys = [(row["b"], row["a"]) for row in told.distinct.to_pylist()]
        assert len(set(keys)) == len(keys) == told.count
        result = images(batch, found, told, known(keys, sink), columns=COLUMNS, skips_equal=skips_equal)
        if isinstance(result, Images):
            break
        looked = True
        batch, found = looked_up(batch, found, told, result, look_up)
    after = result.after
    for key, present, row in zip(keys, after.present.tolist(), after.rows.to_pylist(), strict=True):
        sink.pop(key, None)
        if present:
            sink[key] = (row["x"], row["y"])
    lines = result.marked.to_pylist()
    return [(line["change_type"], _key(line["row"]), (line["row"]["x"], line["row"]["y"])) for line in lines], looked


def _key(row: dict[str, Any]) -> Key:
    return row["b"], row["a"]


def known(keys: list[Key], rows: dict[Key, Row]) -> Known:
    there = [rows.get(key, (None, None)) for key in keys]
    columns = [pa.array([row[at] for row in there], pa.int64()) for at in (0, 1)]
    present = np.array([key in rows for key in keys], np.bool_)
    return Known(present, pa.RecordBatch.from_arrays(columns, names=list(VALUES)))


def fold(told: list[Told], sink: dict[Key, Row]) -> None:
    """A consumer that believes nothing."""
    before: Told | None = None
    for line in told:
        kind, key, row = line
        match kind:
            case "insert":
                assert key not in sink
                sink[key] = row
            case "delete":
                assert sink.pop(key) == row
            case "update_preimage":
                assert sink[key] == row
            case _:
                assert before is not None
                assert before[:2] == ("update_preimage", key)
                sink[key] = row
        before = line


KEYS = st.tuples(st.sampled_from("pq"), st.integers(1, 3))
SMALL = st.one_of(st.none(), st.integers(0, 2))


@st.composite
def some_changes(draw: st.DrawFn, table: dict[Key, Row]) -> list[Change]:
    """Any changes a table of few keys may have; they are made to it."""
    changes = []
    for _ in range(draw(st.integers(0, 12))):
        key = draw(KEYS)
        row = draw(st.tuples(SMALL, SMALL))
        left_out = draw(st.sets(st.sampled_from(VALUES)).map(frozenset))
        moved = key not in table and bool(table) and draw(st.booleans())
        if key not in table and not moved:
            change = Change(INSERT, key, None, row)
        elif not moved and draw(st.booleans()):
            change = Change(DELETE, key)
        else:
            old = draw(st.sampled_from(sorted(table))) if moved else key
            x, y = (was if name in left_out else now for name, was, now in zip(VALUES, table[old], row, strict=True))
            change = Change(UPDATE, key, old if moved else None, (x, y), left_out)
        changes.append(change)
        apply(change, table)
    return changes


@given(st.data(), st.booleans())
def test_images_take_a_consumer_to_the_table_and_are_those_of_one_change_after_the_other(
    data: st.DataObject, skips_equal: bool
) -> None:
    """Rows that come from where nothing was emitted are looked up, at a state in which they may have gone on."""
    table = data.draw(st.dictionaries(KEYS, st.tuples(SMALL, SMALL)))
    emitted = data.draw(st.sets(KEYS))
    sink = {key: row for key, row in table.items() if key in emitted}
    parts = [data.draw(some_changes(table)) for _ in range(data.draw(st.integers(1, 3)))]
    known_rows, expected = dict(sink), dict(sink)
    exact = True
    for changes in parts:
        told, looked = found_of(changes, known_rows, emitted, table, skips_equal=skips_equal)
        exact &= not looked
        fold(told, sink)
        assert sink == known_rows
        by_reference = reference(changes, expected, emitted, skips_equal=skips_equal)
        if exact:
            assert told == by_reference
    assert sink == {key: row for key, row in table.items() if key in emitted}


@given(st.data())
def test_a_row_is_late_if_one_of_its_key_had_a_greater_order(data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 12))
    changes = [
        Change(data.draw(st.sampled_from([INSERT, DELETE])), data.draw(KEYS), None, (0, 0)) for _ in range(count)
    ]
    orders = np.array([data.draw(st.integers(-3, 3)) for _ in range(count)], np.int64)
    batch = pa.RecordBatch.from_pylist([record(change) for change in changes], schema=changes_schema(COLUMNS))
    told = events(batch, halves(batch, key=KEY, forwarded=lambda keys, _: np.ones(keys.num_rows, np.bool_)), KEY)
    reached = np.array([data.draw(st.sampled_from([NO_ORDER, 0, 2])) for _ in range(told.count)], np.int64)
    found = timely(told, orders, reached)
    expected = reached.tolist()
    for at, change in enumerate(changes):
        number = told.number[at]
        late = change.op == INSERT and orders[at] < expected[number]
        assert found.events[at] == (not late)
        if change.op == INSERT and not late:
            expected[number] = orders[at]
    assert found.order.tolist() == expected


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.float64(), [0.0, -0.0, float("nan"), None, 1.5]),
        (pa.list_(pa.int32()), [[], [1], [1, None], [1, 2], [None], None]),
        (pa.list_(pa.list_(pa.string())), [[["a"], []], [["a"]], [[]], [None], [], None]),
        (pa.struct([("p", pa.int8()), ("q", pa.list_(pa.string()))]), [{"p": 1, "q": None}, {"p": 1, "q": []}, None]),
        (pa.map_(pa.string(), pa.int8()), [[("a", 1)], [("a", None)], [], None]),
        (pa.month_day_nano_interval(), [(1, 2, 3), (1, 2, 4), None]),
        (pa.binary(2), [b"ab", b"ac", None]),
        (pa.null(), [None]),
    ],
)
def test_values_of_any_type_are_the_same_exactly_as_themselves(kind: pa.DataType, values: list[Any]) -> None:
    array: Any = pa.array(values, kind)
    left = array.take(pa.array(np.repeat(np.arange(len(values)), len(values))))
    right = array.take(pa.array(np.tile(np.arange(len(values)), len(values))))
    assert same(left, right).reshape(len(values), -1).tolist() == np.eye(len(values), dtype=np.bool_).tolist()
