"""Full images against a reference that takes one change after the other."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill.arrow.sameness import same
from backfill.changes import DELETE, INSERT, OLD_NONE, UPDATE, changes_schema
from backfill.mark import mark
from backfill.whole_rows.events import Portion, events_of, places
from backfill.whole_rows.images import Images, KnownRows, Lost, TooLarge, images
from backfill.whole_rows.late import NO_ORDER, timely
from backfill.whole_rows.lookup import FEW, looked_up
from tests.core.whole_rows_reference import (
    COLUMNS,
    KEY,
    KEYS,
    LONG,
    SMALL,
    VALUES,
    Change,
    Emitted,
    Key,
    Row,
    among,
    batch_of,
    everywhere,
    fold,
    key_of,
    keys_of,
    record,
    reference,
    row_of,
    rows_found,
    some_changes,
    struct,
)


@dataclass
class Copy:
    """The row of each key as a consumer was told of it, and the keys whose rows were looked up."""

    rows: dict[Key, Row]
    looked_up: set[Key]


def found_of(
    changes: list[Change], sink: Copy, emitted: set[Key], later: dict[Key, Row], *, skips_equal: bool
) -> tuple[list[Emitted], bool]:
    """Returns what is told, and whether rows had to be looked up; `later` is the table that they are looked up in."""
    batch = batch_of(changes)

    def look_up(keys: pa.RecordBatch) -> pa.RecordBatch:
        return rows_found(keys, later)

    found = mark(batch, key=KEY, forwarded=among(emitted))
    while True:
        portion = Portion.of(batch, found, KEY)
        events = portion.events
        keys = keys_of(events.distinct)
        assert len(set(keys)) == len(keys) == events.count
        severed = np.zeros(len(events), np.bool_)
        severed[[events.first[number] for number, key in enumerate(keys) if key in sink.looked_up]] = True
        before, limit = known(keys, sink), sys.maxsize
        result = images(portion, before, columns=COLUMNS, skips_equal=skips_equal, most_bytes=limit, severed=severed)
        if isinstance(result, Images):
            break
        assert isinstance(result, Lost)
        replaced = looked_up(portion, result, look_up, shows_the_rest=True, most_bytes=sys.maxsize)
        assert not isinstance(replaced, TooLarge)
        batch, found = replaced
    after = result.after
    for key, present, row in zip(keys, after.present.tolist(), after.rows.to_pylist(), strict=True):
        sink.rows.pop(key, None)
        if present:
            sink.rows[key] = row_of(row)
    looked_up_now = {keys[number] for number in events.number[events.change >= len(changes)]}
    sink.looked_up -= set(keys)
    sink.looked_up |= looked_up_now
    lines = result.marked.to_pylist()
    return [(line["change_type"], key_of(line["row"]), row_of(line["row"])) for line in lines], bool(looked_up_now)


def known(keys: list[Key], sink: Copy) -> KnownRows:
    there = [struct(key, sink.rows.get(key, (None, None))) for key in keys]
    columns = [pa.array([row[name] for row in there], COLUMNS.field(name).type) for name in VALUES]
    present = np.array([key in sink.rows for key in keys], np.bool_)
    return KnownRows(present, pa.RecordBatch.from_arrays(columns, names=list(VALUES)))


@given(st.data(), st.booleans(), st.booleans())
def test_images_take_a_consumer_to_the_table_and_are_those_of_one_change_after_the_other(
    data: st.DataObject, skips_equal: bool, begins_without_y: bool
) -> None:
    """Rows that come from where nothing was emitted are looked up, at a state in which they may have gone on; and so
    are those that were stored before their column was carried, if a change leaves out its value."""
    table = data.draw(st.dictionaries(KEYS, st.tuples(SMALL, SMALL)))
    emitted = data.draw(st.sets(KEYS))
    sink = {key: (x, None if begins_without_y else y) for key, (x, y) in table.items() if key in emitted}
    parts = [data.draw(some_changes(table)) for _ in range(data.draw(st.integers(1, 3)))]
    copy, expected = Copy(dict(sink), set()), dict(sink)
    exact = True
    for changes in parts:
        events, looked = found_of(changes, copy, emitted, table, skips_equal=skips_equal)
        exact &= not looked
        fold(events, sink)
        assert sink == copy.rows
        by_reference = reference(changes, expected, emitted, skips_equal=skips_equal)
        if exact:
            assert events == by_reference
    changed = {change.key for changes in parts for change in changes}
    assert sink == {
        key: (x, None if begins_without_y and key not in changed else y)
        for key, (x, y) in table.items()
        if key in emitted
    }


@given(st.data())
def test_a_row_is_late_if_one_of_its_key_had_a_greater_order(data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 12))
    changes = [
        Change(data.draw(st.sampled_from([INSERT, DELETE])), data.draw(KEYS), None, (0, 0)) for _ in range(count)
    ]
    some = st.integers(-3, 3) | st.just(NO_ORDER)
    orders = np.array([NO_ORDER if change.op == DELETE else data.draw(some) for change in changes], np.int64)
    batch = batch_of(changes)
    events = events_of(batch, mark(batch, key=KEY, forwarded=everywhere), KEY)
    reached = np.array([data.draw(st.sampled_from([NO_ORDER, 0, 2])) for _ in range(events.count)], np.int64)
    found = timely(events, orders, reached)
    expected = reached.tolist()
    for at in range(count):
        number = events.number[at]
        late = NO_ORDER < orders[at] < expected[number]
        assert found.events[at] == (not late)
        expected[number] = max(expected[number], orders[at])
    assert found.order.tolist() == expected


def test_the_first_row_of_a_key_comes_after_none_that_is_late() -> None:
    """This holds even where the very last event is late."""
    changes = [Change(INSERT, ("p", number), None, (0, 0)) for number in (1, 2, 2, 2)]
    batch = batch_of(changes)
    events = events_of(batch, mark(batch, key=KEY, forwarded=everywhere), KEY)
    found = timely(events, np.array([5, 3, 8, 3]), np.array([NO_ORDER, 7]))
    assert found.events.tolist() == [True, False, True, False]
    assert found.severed.tolist() == [False, False, True, False]


def test_keys_of_several_columns_are_numbered_as_they_appear() -> None:
    changes = [Change(INSERT, key) for key in (("p", 1), ("q", 1), ("p", 2), ("q", 1), ("p", 1))]
    batch = batch_of(changes)
    events = events_of(batch, mark(batch, key=KEY, forwarded=everywhere), KEY)
    assert events.number.tolist() == [0, 1, 2, 1, 0]


def test_rows_are_looked_up_in_the_order_in_which_they_are_lost() -> None:
    """Where it is too much, the result names the first change from which on no row was looked up."""
    keys = [("p", number) for number in range(4 * FEW)]
    changes = [Change(UPDATE, key, None, (1, 1)) for key in [*keys, *reversed(keys)]]
    batch = batch_of(changes)
    found = mark(batch, key=KEY, forwarded=everywhere)
    portion = Portion.of(batch, found, KEY)
    lost = Lost(np.arange(len(portion.events)) >= len(keys))
    asked: list[Key] = []

    def look_up(wanted: pa.RecordBatch) -> pa.RecordBatch:
        asked.extend(keys_of(wanted))
        return pa.RecordBatch.from_pylist([struct(key, (2, 2)) for key in asked], schema=COLUMNS)

    result = looked_up(portion, lost, look_up, shows_the_rest=True, most_bytes=0)
    assert result == TooLarge(len(keys) + FEW)
    assert asked == keys[: -FEW - 1 : -1]


def test_a_row_that_is_looked_up_is_an_update_and_one_that_is_gone_a_delete_with_its_key() -> None:
    keys = [("p", 1), ("p", 2)]
    changes = [Change(UPDATE, key, None, (1, 1)) for key in keys]
    lines = [{**record(change), "version": at, "commit_id": at} for at, change in enumerate([*changes, *changes])]
    batch = pa.RecordBatch.from_pylist(lines, schema=changes_schema(COLUMNS))
    found = mark(batch, key=KEY, forwarded=everywhere)
    portion = Portion.of(batch, found, KEY)
    there = pa.RecordBatch.from_pylist([struct(keys[1], (2, 2))], schema=COLUMNS)
    lost = Lost(np.array([True, True, False, False]))
    result = looked_up(portion, lost, lambda _: there, shows_the_rest=True, most_bytes=sys.maxsize)
    assert not isinstance(result, TooLarge)
    made, kept = result
    added = [{**record(Change(DELETE, keys[0]))}, {**record(Change(UPDATE, keys[1], None, (2, 2)))}]
    expected = [{**line, "version": at, "commit_id": at} for at, line in enumerate(added, 2)]
    assert made.to_pylist()[4:] == pa.RecordBatch.from_pylist(expected, schema=batch.schema).to_pylist()
    assert kept.old.tolist() == [False] * 4 + [True, False]
    assert kept.new.tolist() == [False] * 4 + [False, True]


def test_a_float_zero_is_one_key_with_either_sign() -> None:
    columns = pa.schema([pa.field("k", pa.float64())])
    head = {"op": INSERT, "version": 1, "timestamp": 0, "commit_id": 1, "old_kind": OLD_NONE, "old": None}
    lines = [{**head, "new": {"k": key}, "unchanged": None} for key in (-0.0, 1.0, 0.0)]
    batch = pa.RecordBatch.from_pylist(lines, schema=changes_schema(columns))
    found = mark(batch, key=("k",), forwarded=everywhere)
    events = events_of(batch, found, ("k",))
    assert events.number.tolist() == [0, 1, 0]
    assert [str(key) for key in events.distinct["k"].to_pylist()] == ["0.0", "1.0"]
    assert places(events.keys, events.distinct).tolist() == [0, 1, 0]


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
    found = same(left, right)
    assert found.reshape(len(values), -1).tolist() == np.eye(len(values), dtype=np.bool_).tolist()
    assert same(left[1:], right[1:]).tolist() == found[1:].tolist()


@pytest.mark.parametrize("from_here", [True, False])
def test_the_first_change_takes_values_from_the_row_that_it_moved_and_from_no_other(*, from_here: bool) -> None:
    old, new = ("p", 1), ("p", 2)
    change = Change(UPDATE, new, old, (1, 1), frozenset({"y"}))
    batch = batch_of([change])
    sink = Copy({old: (0, 1)} if from_here else {new: (0, 2)}, set())
    emitted = sorted({old, new} if from_here else {new})
    found = mark(batch, key=KEY, forwarded=among(emitted))
    result = images(
        Portion.of(batch, found, KEY),
        known(emitted, sink),
        columns=COLUMNS,
        skips_equal=False,
        most_bytes=sys.maxsize,
        severed=np.zeros(len(emitted), np.bool_),
    )
    assert isinstance(result, Images if from_here else Lost)


@pytest.mark.parametrize(("count", "most", "fitting"), [(1, 0, None), (3, 0, 1), (3, 4 * LONG, 2), (3, 6 * LONG, None)])
def test_values_that_were_left_out_count_in_both_images_of_a_change(count: int, most: int, fitting: int | None) -> None:
    key = ("p", 1)
    batch = batch_of(Change(UPDATE, key, None, (number, 1), frozenset({"y"})) for number in range(count))
    found = mark(batch, key=KEY, forwarded=everywhere)
    portion, before = Portion.of(batch, found, KEY), known([key], Copy({key: (9, 1)}, set()))
    none = np.zeros(count, np.bool_)
    result = images(portion, before, columns=COLUMNS, skips_equal=False, most_bytes=most, severed=none)
    assert isinstance(result, Images) if fitting is None else result == TooLarge(fitting)


def test_what_comes_of_a_row_that_is_lost_is_lost_with_it() -> None:
    """A row is lost with all its values, so one that takes a value from it is lost even where that value is known."""
    fields: list[pa.Field[Any]] = [pa.field("k", pa.int64()), pa.field("y", pa.string()), pa.field("z", pa.string())]
    columns = pa.schema(fields)
    rows = [
        {"k": 1, "y": "Y1", "z": "Z1"},
        {"k": 1, "y": None, "z": "Z2"},
        {"k": 1, "y": "Y3", "z": None},
        {"k": 1, "y": "Y4", "z": "Z4"},
    ]
    unchanged = [None, ["y"], ["z"], None]
    head = {"op": UPDATE, "version": 1, "timestamp": 0, "commit_id": 1, "old_kind": OLD_NONE, "old": None}
    lines = [{**head, "new": row, "unchanged": names} for row, names in zip(rows, unchanged, strict=True)]
    batch = pa.RecordBatch.from_pylist(lines, schema=changes_schema(columns))
    found = mark(batch, key=("k",), forwarded=everywhere)
    portion = Portion.of(batch, found, ("k",))
    stored = pa.RecordBatch.from_pylist([{"y": "Y0", "z": "Z0"}])
    before = KnownRows(np.array([True]), stored)
    severed = np.array([False, True, False, False])
    result = images(portion, before, columns=columns, skips_equal=False, most_bytes=sys.maxsize, severed=severed)
    assert isinstance(result, Lost)
    assert result.events.tolist() == [False, True, True, False]
