"""Output rows have exact schemas, a sequence that orders each key's rows, and no unknown value."""

from __future__ import annotations

import datetime as dt
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill.arrow.arrays import Indices, Mask
from backfill.changes import INSERT, OLD_KEY, OLD_ROW, UPDATE, changes_schema
from backfill.epoch import Epoch
from backfill.errors import OptionsError, UnchangedToastError
from backfill.mark import mark, marked_rows
from backfill.rows import METADATA, UNCHANGED_COLUMNS, RowFormat
from backfill.upstream import TableSchema

_FIELDS: list[pa.Field[Any]] = [
    pa.field("big", pa.string()),
    pa.field("n", pa.decimal128(10, 2), nullable=False),
    pa.field("id", pa.int64(), nullable=False),
]
COLUMNS = pa.schema(_FIELDS)
TABLE = TableSchema(name="t", columns=COLUMNS, output=("n", "big"), key=("id",))
"""The key was not selected, and the columns were asked for in another order."""

PLAIN, MARKING = RowFormat(TABLE, mark_unchanged=False), RowFormat(TABLE, mark_unchanged=True)
EPOCH = Epoch(3, "position", 42, 1_700_000_000_000_001)

formats = pytest.mark.parametrize("rows", [PLAIN, MARKING], ids=["plain", "with unchanged columns"])


def snapshot(count: int) -> pa.RecordBatch:
    values: list[pa.Array[Any]] = [
        pa.array([f"b{at}" for at in range(count)], pa.string()),
        pa.array([None] * count, pa.decimal128(10, 2)),
        pa.array(range(count), pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(values, schema=pa.schema([field.with_nullable(True) for field in COLUMNS]))


def everything(_keys: pa.RecordBatch, rows: Indices) -> Mask:
    return np.ones(len(rows), np.bool_)


def marked(count: int, *, unchanged: list[str] | None = None) -> pa.RecordBatch:
    """Returns the marked rows of `count` updates, the odd ones with an image before."""
    records = [
        {
            "op": UPDATE,
            "version": 100 + at,
            "timestamp": 5_000_000 + at,
            "commit_id": at,
            "old_kind": OLD_ROW if at % 2 else OLD_KEY,
            "new": {"big": None if unchanged else "new", "n": None, "id": at},
            "old": {"big": "old", "n": None, "id": at},
            "unchanged": unchanged,
        }
        for at in range(count)
    ]
    changes = pa.RecordBatch.from_pylist(records, schema=changes_schema(COLUMNS))
    return marked_rows(changes, mark(changes, key=TABLE.key, forwarded=everything), truncates=False)


def test_the_columns_asked_for_come_first_then_the_metadata_which_is_never_null() -> None:
    assert PLAIN.schema.names == ["n", "big", *METADATA.names]
    assert MARKING.schema.names == ["n", "big", *METADATA.names, UNCHANGED_COLUMNS]
    assert all(field.nullable == (field.name not in METADATA.names) for field in MARKING.schema)
    assert PLAIN.schema.field("n").type == pa.decimal128(10, 2)
    assert [str(kind) for kind in METADATA.types] == ["string", "bool", "int64", "timestamp[us, tz=UTC]", "int64"]


@pytest.mark.parametrize("chosen", [(), ("_sequence",), ("_change_type", "_commit_timestamp"), tuple(METADATA.names)])
def test_rows_have_the_metadata_that_was_chosen_and_it_is_the_same(chosen: tuple[str, ...]) -> None:
    some, names = RowFormat(TABLE, mark_unchanged=True, metadata=chosen), ["n", "big", *chosen, UNCHANGED_COLUMNS]
    assert some.schema == pa.schema([MARKING.schema.field(name) for name in names])
    assert some.snapshot_rows(snapshot(3), EPOCH).equals(MARKING.snapshot_rows(snapshot(3), EPOCH).select(names))
    assert some.change_rows(marked(3), EPOCH, 5).equals(MARKING.change_rows(marked(3), EPOCH, 5).select(names))


@formats
@pytest.mark.parametrize("count", [0, 1, 5])
def test_every_batch_has_exactly_the_schema(rows: RowFormat, count: int) -> None:
    assert rows.snapshot_rows(snapshot(count), EPOCH).schema.equals(rows.schema, check_metadata=True)
    assert rows.change_rows(marked(count), EPOCH, 0).schema.equals(rows.schema, check_metadata=True)


def test_the_rows_of_both_sides_have_equal_schemas_whatever_the_tables_nullability() -> None:
    assert PLAIN.snapshot_rows(snapshot(1), EPOCH).schema == PLAIN.change_rows(marked(1), EPOCH, 0).schema


def test_a_snapshot_row_has_the_position_and_time_of_its_epoch() -> None:
    (row,) = MARKING.snapshot_rows(snapshot(1), EPOCH).to_pylist()
    assert row == {
        "n": None,
        "big": "b0",
        "_change_type": "insert",
        "_is_snapshot": True,
        "_commit_version": 42,
        "_commit_timestamp": dt.datetime(2023, 11, 14, 22, 13, 20, 1, tzinfo=dt.UTC),
        "_sequence": (3 << 32) + 0xFFFFFFFF,
        UNCHANGED_COLUMNS: None,
    }


def test_a_change_has_the_position_and_time_of_its_commit() -> None:
    before, after = PLAIN.change_rows(marked(2), EPOCH, 7).to_pylist()[1:]
    assert (before["_change_type"], before["big"]) == ("update_preimage", "old")
    assert after == {
        "n": None,
        "big": "new",
        "_change_type": "update_postimage",
        "_is_snapshot": False,
        "_commit_version": 101,
        "_commit_timestamp": dt.datetime(1970, 1, 1, 0, 0, 5, 1, tzinfo=dt.UTC),
        "_sequence": (3 << 32) + 7 + 2,
    }


@given(st.lists(st.lists(st.integers(0, 6), max_size=4), min_size=1, max_size=5))
def test_the_sequence_grows_with_every_change_and_the_snapshot_comes_last(epochs: list[list[int]]) -> None:
    found = [-1]
    for number, batches in enumerate(epochs, start=1):
        epoch = Epoch(number, "", number, number)
        first = 0
        for count in batches:
            changes = marked(count)
            found += PLAIN.change_rows(changes, epoch, first)["_sequence"].to_numpy().tolist()
            first += changes.num_rows
        found += set(PLAIN.snapshot_rows(snapshot(3), epoch)["_sequence"].to_numpy().tolist())
    assert all(one < two for one, two in pairwise(found))


def test_a_value_that_the_log_left_out_is_refused_by_the_name_of_its_column_and_three_ways_out() -> None:
    with pytest.raises(UnchangedToastError) as caught:
        PLAIN.change_rows(marked(3, unchanged=["n", "big"]), EPOCH, 0)
    assert "column big, n of t unchanged" in str(caught.value)
    for way in ("REPLICA IDENTITY FULL", "the option columns", "onUnchangedToast=mark"):
        assert way in str(caught.value)


def test_values_that_the_log_left_out_are_named_where_that_was_asked_for() -> None:
    found = MARKING.change_rows(marked(2, unchanged=["big"]), EPOCH, 0)
    assert found[UNCHANGED_COLUMNS].to_pylist() == [["big"], None, ["big"]]
    assert found["big"].to_pylist() == [None, "old", None]


@pytest.mark.parametrize("name", [*METADATA.names, UNCHANGED_COLUMNS, "_Sequence"])
def test_a_column_with_the_name_of_a_metadata_column_is_refused(name: str) -> None:
    columns = pa.schema([pa.field("id", pa.int64()), pa.field(name, pa.int64())])
    with pytest.raises(OptionsError, match=f"column {name} of t has the name of a metadata column"):
        RowFormat(TableSchema("t", columns, ("id", name), ("id",)), mark_unchanged=False)
    assert RowFormat(TableSchema("t", columns, ("id",), ("id",)), mark_unchanged=False).schema.names[0] == "id"


def test_an_insert_carries_nothing_unchanged() -> None:
    record = {"op": INSERT, "version": 1, "timestamp": 1, "commit_id": 1, "old_kind": 0, "unchanged": None}
    row = {"big": "b", "n": None, "id": 1}
    changes = pa.RecordBatch.from_pylist([{**record, "new": row, "old": None}], schema=changes_schema(COLUMNS))
    found = marked_rows(changes, mark(changes, key=TABLE.key, forwarded=everything), truncates=False)
    assert MARKING.change_rows(found, EPOCH, 0)[UNCHANGED_COLUMNS].to_pylist() == [None]
