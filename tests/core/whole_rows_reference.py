"""Random changes to a table of few keys, and the rows they become: the reference for whole rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from backfill.arrow.arrays import Indices, Mask
from backfill.changes import DELETE, INSERT, OLD_KEY, OLD_NONE, UPDATE, changes_schema

Key = tuple[str, int]
Value = int | None
Row = tuple[Value, Value]
Emitted = tuple[str, Key, Row]

_FIELDS: list[pa.Field[Any]] = [
    pa.field("x", pa.int64()),
    pa.field("a", pa.int64()),
    pa.field("y", pa.string()),
    pa.field("b", pa.string()),
]
COLUMNS = pa.schema(_FIELDS)
KEY = ("b", "a")
VALUES = ("x", "y")
LONG = 50
"""How often the digit of `y` is repeated, so that its values are long enough to be left out."""


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


def batch_of(changes: Iterable[Change]) -> pa.RecordBatch:
    """Makes a batch of the changes as an upstream gives them."""
    return pa.RecordBatch.from_pylist([record(change) for change in changes], schema=changes_schema(COLUMNS))


def struct(key: Key, row: Row) -> dict[str, Any]:
    return {"x": row[0], "y": None if row[1] is None else LONG * str(row[1]), "b": key[0], "a": key[1]}


def row_of(found: dict[str, Any]) -> Row:
    return found["x"], found["y"] and int(found["y"][0])


def apply(change: Change, table: dict[Key, Row]) -> None:
    table.pop(change.key if change.old is None else change.old, None)
    if change.op != DELETE:
        table[change.key] = change.row


def in_order(change: Change) -> Change:
    """Returns the same change with a whole row, whose `x` is the row's place in an order, if it has one."""
    return replace(change, left_out=frozenset())


def apply_in_order(change: Change, emitted: set[Key], rows: dict[Key, Row], latest: dict[Key, Row]) -> None:
    """Makes a change to the emitted rows; its row comes late after one of a greater `x`, though that be gone.

    `latest` has the last row of each key with an order. One without is never late.
    """
    gone = change.key if change.op == DELETE else change.old
    if gone is not None:
        rows.pop(gone, None)
    if change.op != DELETE and change.key in emitted:
        order, (before, _) = change.row[0], latest.get(change.key, (None, None))
        if order is None or before is None or order >= before:
            rows[change.key] = change.row
            if order is not None:
                latest[change.key] = change.row


def reference(changes: list[Change], sink: dict[Key, Row], emitted: set[Key], *, skips_equal: bool) -> list[Emitted]:
    """Returns the rows that the changes become, taken one after the other; brings `sink` up to date."""
    emitted_rows: list[Emitted] = []
    for change in changes:
        gone = change.key if change.op == DELETE else change.old
        if gone in sink and gone is not None:
            emitted_rows.append(("delete", gone, sink.pop(gone)))
        if change.op == DELETE or change.key not in emitted:
            continue
        before = sink.get(change.key)
        sink[change.key] = change.row
        if before is None:
            emitted_rows.append(("insert", change.key, change.row))
        elif not (skips_equal and before == change.row):
            emitted_rows += [("update_preimage", change.key, before), ("update_postimage", change.key, change.row)]
    return emitted_rows


def key_of(row: dict[str, Any]) -> Key:
    return row["b"], row["a"]


def keys_of(batch: pa.RecordBatch) -> list[Key]:
    return [key_of(row) for row in batch.to_pylist()]


def everywhere(keys: pa.RecordBatch, _rows: Indices) -> Mask:
    """Forwards all changes, as where all of the table has been emitted."""
    return np.ones(keys.num_rows, np.bool_)


def among(emitted: Collection[Key]) -> Callable[[pa.RecordBatch, Indices], Mask]:
    """Forwards the changes to these keys."""
    return lambda keys, _: np.array([key in emitted for key in keys_of(keys)], np.bool_)


def rows_found(keys: pa.RecordBatch, table: dict[Key, Row]) -> pa.RecordBatch:
    """Returns the rows that the table has of these keys, in another order than theirs."""
    asked = keys_of(keys)
    rows = [struct(key, row) for key, row in sorted(table.items(), reverse=True) if key in asked]
    return pa.RecordBatch.from_pylist(rows, schema=COLUMNS)


def fold(emitted_rows: list[Emitted], sink: dict[Key, Row]) -> None:
    """Applies emitted rows to `sink`, as a consumer that checks everything."""
    before: Emitted | None = None
    for line in emitted_rows:
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
    """Draws changes that a table of few keys may have, and makes them to it."""
    changes = []
    for _ in range(draw(st.integers(0, 12))):
        key = draw(KEYS)
        row = draw(st.tuples(SMALL, SMALL))
        drawn = draw(st.sets(st.sampled_from(VALUES)))
        moved = key not in table and bool(table) and draw(st.booleans())
        if key not in table and not moved:
            change = Change(INSERT, key, None, row)
        elif not moved and draw(st.booleans()):
            change = Change(DELETE, key)
        else:
            old = draw(st.sampled_from(sorted(table))) if moved else key
            # A null is never left out.
            there = dict(zip(VALUES, table[old], strict=True))
            left_out = frozenset(name for name in drawn if there[name] is not None)
            x, y = (was if name in left_out else now for name, was, now in zip(VALUES, table[old], row, strict=True))
            change = Change(UPDATE, key, old if moved else None, (x, y), left_out)
        changes.append(change)
        apply(change, table)
    return changes
