"""Marking against a reference that looks at one change at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from backfill.arrow.arrays import Indices, Mask
from backfill.changes import DELETE, INSERT, OLD_KEY, OLD_NONE, OLD_ROW, TRUNCATE, UPDATE, changes_schema
from backfill.mark import CHANGE_TYPES, MARKED_COLUMNS, mark, marked_rows

_FIELDS: list[pa.Field[Any]] = [pa.field("v", pa.string()), pa.field("a", pa.int64()), pa.field("b", pa.string())]
COLUMNS = pa.schema(_FIELDS)
SCHEMA = changes_schema(COLUMNS)
KEY = ("b", "a")
"""The key's columns are not the first ones, and not in the table's order."""

Key = tuple[str, int]
Row = tuple[str | None, int, str]
"""`v`, `a`, `b`."""


@dataclass(frozen=True)
class Change:
    op: int
    new: Row | None
    old: Row | None
    old_kind: int
    unchanged: tuple[str, ...] | None = None

    def record(self, number: int) -> dict[str, Any]:
        old = self.old if self.old_kind != OLD_KEY or self.old is None else (None, *self.old[1:])
        return {
            "op": self.op,
            "version": 10 + number // 2,
            "timestamp": 1_000_000 * number,
            "commit_id": number // 2,
            "old_kind": self.old_kind,
            "new": as_struct(self.new),
            "old": None if self.old_kind == OLD_NONE else as_struct(old),
            "unchanged": None if self.unchanged is None else list(self.unchanged),
        }


def as_struct(row: Row | tuple[None, int, str] | None) -> dict[str, Any] | None:
    return None if row is None else dict(zip(COLUMNS.names, row, strict=True))


def key_of(row: Row) -> Key:
    return (row[2], row[1])


def batch_of(changes: list[Change]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([change.record(number) for number, change in enumerate(changes)], schema=SCHEMA)


Marked = tuple[dict[str, Any] | None, str, int, Any, list[str] | None]


def reference(changes: list[Change], emitted: set[Key], *, truncates: bool) -> Iterator[Marked]:
    """Yields what goes forward, by the table in the docstring of `backfill.mark`."""
    for change, record in zip(changes, batch_of(changes).to_pylist(), strict=True):
        old, new = change.old, change.new
        goes_old = old is not None and key_of(old) in emitted
        goes_new = new is not None and key_of(new) in emitted
        first = (record["old"], record["version"], record["timestamp"], None)
        second = (record["new"], record["version"], record["timestamp"], record["unchanged"])
        if change.op == TRUNCATE:
            if truncates:
                yield _marked(first, "truncate")
        elif old is not None and new is not None and key_of(old) == key_of(new):
            if goes_new and change.old_kind == OLD_ROW:
                yield _marked(first, "update_preimage")
            if goes_new:
                yield _marked(second, "update_postimage")
        else:
            if goes_old:
                yield _marked(first, "delete")
            if goes_new:
                yield _marked(second, "insert")


def _marked(row: tuple[dict[str, Any] | None, int, Any, list[str] | None], kind: str) -> Marked:
    return (row[0], kind, row[1], row[2], row[3])


class Emitted:
    """Answers which keys are of this set, and checks that it is asked properly."""

    def __init__(self, changes: list[Change], keys: set[Key]) -> None:
        self.changes = changes
        self.keys = keys

    def __call__(self, keys: pa.RecordBatch, rows: Indices) -> Mask:
        assert keys.schema.names == list(KEY)
        assert len(rows) == keys.num_rows
        pairs = list(zip(keys["b"].to_pylist(), keys["a"].to_pylist(), strict=True))
        for row, pair in zip(rows, pairs, strict=True):
            change = self.changes[row]
            assert pair in [key_of(side) for side in (change.old, change.new) if side is not None]
        return np.array([pair in self.keys for pair in pairs], np.bool_)


def marked(changes: list[Change], emitted: set[Key], *, truncates: bool = False) -> list[Marked]:
    ask = Emitted(changes, emitted)
    batch = batch_of(changes)
    found = marked_rows(batch, mark(batch, key=KEY, forwarded=ask), truncates=truncates)
    assert found.schema.names == list(MARKED_COLUMNS)
    types = [SCHEMA.field("new").type, pa.string(), pa.int64(), SCHEMA.field("timestamp").type]
    assert found.schema.types == [*types, SCHEMA.field("unchanged").type]
    return list(zip(*(column.to_pylist() for column in found.columns), strict=True))


rows = st.tuples(st.none() | st.sampled_from("xyz"), st.integers(0, 2), st.sampled_from("pq"))
unchanged = st.none() | st.just(("v",))


@st.composite
def changes(draw: st.DrawFn) -> Change:
    op = draw(st.sampled_from([INSERT, UPDATE, UPDATE, UPDATE, DELETE, TRUNCATE]))
    if op == TRUNCATE:
        return Change(op, None, None, OLD_NONE)
    new = None if op == DELETE else draw(rows)
    if op == INSERT:
        return Change(op, new, None, OLD_NONE)
    kind = draw(st.sampled_from([OLD_KEY, OLD_ROW] if op == DELETE else [OLD_NONE, OLD_KEY, OLD_ROW]))
    old = draw(rows)
    if kind == OLD_NONE and new is not None:
        # PostgreSQL leaves out the old row only where the key stays.
        old = (old[0], *new[1:])
    return Change(op, new, old, kind, draw(unchanged) if op == UPDATE else None)


key_sets = st.sets(st.tuples(st.sampled_from("pq"), st.integers(0, 2)))


@given(st.lists(changes(), max_size=12), key_sets, st.booleans())
@example([], set(), True)
def test_marking_agrees_with_looking_at_one_change_at_a_time(
    made: list[Change], emitted: set[Key], truncates: bool
) -> None:
    assert marked(made, emitted, truncates=truncates) == list(reference(made, emitted, truncates=truncates))


HERE, THERE, ELSEWHERE = ("x", 1, "p"), ("y", 2, "q"), ("z", 0, "p")


def kinds(found: list[Marked]) -> list[tuple[str, int | None]]:
    return [(item[1], None if item[0] is None else item[0]["a"]) for item in found]


@pytest.mark.parametrize("old_kind", [OLD_KEY, OLD_ROW])
@pytest.mark.parametrize(
    ("emitted", "expected"),
    [
        ({HERE, THERE}, [("delete", 1), ("insert", 2)]),
        ({HERE}, [("delete", 1)]),
        ({THERE}, [("insert", 2)]),
        (set(), []),
    ],
)
def test_an_update_that_moves_the_key_is_a_delete_and_an_insert_each_marked_on_its_own(
    old_kind: int, emitted: set[Row], expected: list[tuple[str, int]]
) -> None:
    moved = Change(UPDATE, THERE, HERE, old_kind)
    assert kinds(marked([moved], {key_of(row) for row in emitted})) == expected


def test_an_update_under_replica_identity_default_has_no_image_before() -> None:
    update = Change(UPDATE, HERE, ("before", *HERE[1:]), OLD_NONE)
    assert kinds(marked([update], {key_of(HERE)})) == [("update_postimage", 1)]


def test_an_update_under_replica_identity_full_has_the_image_before() -> None:
    update = Change(UPDATE, HERE, ("before", *HERE[1:]), OLD_ROW)
    found = marked([update], {key_of(HERE)})
    assert [(item[1], item[0] and item[0]["v"]) for item in found] == [
        ("update_preimage", "before"),
        ("update_postimage", "x"),
    ]


def test_an_update_whose_old_key_is_known_and_the_same_stays_an_update() -> None:
    assert kinds(marked([Change(UPDATE, HERE, HERE, OLD_KEY)], {key_of(HERE)})) == [("update_postimage", 1)]


@pytest.mark.parametrize("change", [Change(INSERT, HERE, None, OLD_NONE), Change(DELETE, None, HERE, OLD_KEY)])
def test_a_change_to_a_key_that_was_not_emitted_is_left_out(change: Change) -> None:
    assert marked([change], {key_of(ELSEWHERE)}) == []


def test_changes_to_one_key_stay_in_their_order() -> None:
    made = [
        Change(INSERT, HERE, None, OLD_NONE),
        Change(UPDATE, ("2", *HERE[1:]), HERE, OLD_ROW),
        Change(UPDATE, THERE, HERE, OLD_KEY),
        Change(UPDATE, HERE, THERE, OLD_KEY),
        Change(DELETE, None, HERE, OLD_KEY),
        Change(INSERT, HERE, None, OLD_NONE),
    ]
    assert kinds(marked(made, {key_of(HERE)})) == [
        ("insert", 1),
        ("update_preimage", 1),
        ("update_postimage", 1),
        ("delete", 1),
        ("insert", 1),
        ("delete", 1),
        ("insert", 1),
    ]


def test_unchanged_columns_stay_with_the_row_after_the_change() -> None:
    update = Change(UPDATE, THERE, HERE, OLD_ROW, ("v",))
    found = marked([update], {key_of(HERE), key_of(THERE)})
    assert [(item[1], item[4]) for item in found] == [("delete", None), ("insert", ["v"])]


@pytest.mark.parametrize("truncates", [True, False])
def test_a_truncation_is_a_row_of_nulls_where_it_is_asked_for(truncates: bool) -> None:
    found = marked([Change(TRUNCATE, None, None, OLD_NONE)], {key_of(HERE)}, truncates=truncates)
    assert kinds(found) == ([("truncate", None)] if truncates else [])


def test_the_change_types_are_those_of_sparks_change_feeds() -> None:
    assert CHANGE_TYPES[:4] == ("insert", "update_preimage", "update_postimage", "delete")


def test_a_sliced_batch_is_marked_as_if_it_stood_alone() -> None:
    made = [
        Change(DELETE, None, ELSEWHERE, OLD_ROW),
        Change(UPDATE, THERE, HERE, OLD_ROW),
        Change(INSERT, HERE, None, 0),
    ]
    emitted = {key_of(HERE), key_of(THERE)}
    ask = Emitted(made[1:], emitted)
    batch = batch_of(made).slice(1)
    found = marked_rows(batch, mark(batch, key=KEY, forwarded=ask), truncates=False)
    assert found["change_type"].to_pylist() == ["delete", "insert", "insert"]
