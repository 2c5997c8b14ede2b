"""A compacted batch has the effect of its rows applied one by one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill.errors import OptionsError, UnchangedToastError
from backfill.sinks.compacted import CompactedBatch, compacted
from tests.sinks.batches import SCHEMA, Row, batch, row

Target = dict[tuple[int, str], Row]


def applied(last: CompactedBatch, target: Target) -> Target:
    """Returns a target after a compacted batch."""
    result = {} if last.emptied else dict(target)
    for at, new in enumerate(last.rows.to_pylist()):
        key = (new["a"], new["b"])
        before = result.pop(key, {})
        if not last.deleted[at]:
            result[key] = new | {name: before[name] for name, kept in last.kept.items() if kept[at]}
    return result


@st.composite
def histories(draw: st.DrawFn) -> tuple[Target, list[Row], Target]:
    """Draws a target, rows that can be applied to it one by one, and the target after them."""
    keys = st.tuples(st.integers(0, 2), st.sampled_from("xy"))
    before = {(a, b): {"a": a, "b": b, "v": "old", "w": "old"} for a, b in draw(st.sets(keys))}
    now, rows = dict(before), []
    for number, (a, b) in enumerate(draw(st.lists(keys, max_size=20))):
        value = str(number)
        if draw(st.integers(0, 9)) == 0:
            rows.append({"_change_type": "truncate"})
            now = {}
        elif (a, b) not in now:
            rows.append(row("insert", a, b, value))
            now[a, b] = {"a": a, "b": b, "v": value, "w": value}
        elif draw(st.booleans()):
            rows.append(row("delete", a, b, None))
            del now[a, b]
        else:
            kept = draw(st.sampled_from([None, ["v"], ["w"], ["v", "w"]]))
            rows.append(row("update_preimage", a, b, "before"))
            rows.append(row("update_postimage", a, b, value, kept))
            now[a, b] = {"a": a, "b": b, "v": value, "w": value} | {name: now[a, b][name] for name in kept or ()}
    return before, rows, now


@given(histories(), st.randoms(use_true_random=False))
def test_the_last_rows_are_the_whole_batch_whatever_the_order_in_which_readers_give_it(
    history: tuple[Target, list[Row], Target], chance: Any
) -> None:
    before, rows, after = history
    table = batch(*rows)
    order = list(range(table.num_rows))
    chance.shuffle(order)
    assert applied(compacted(table.take(pa.array(order, pa.int64())), ["a", "b"], "the table t"), before) == after


def test_columns_of_the_source_are_left_and_the_batch_need_not_have_marks() -> None:
    table = batch(row("insert", 1, "x", "1")).drop_columns(["_unchanged_columns"])
    last = compacted(table, ["a"], "the table t")
    assert last.rows.column_names == ["a", "b", "v", "w"]
    assert last.kept == {}


def test_text_and_bytes_of_a_batch_may_be_more_than_offsets_of_32_bits_count() -> None:
    """The test looks at their Arrow types, as a batch of that size would take gigabytes."""
    table = batch(row("insert", 1, "x", "1")).append_column("raw", pa.array([b"x"])).append_column("n", pa.array([1]))
    assert compacted(table, ["a", "b"], "the table t").rows.schema.types == [
        pa.int64(),
        *[pa.large_string()] * 3,
        pa.large_binary(),
        pa.int64(),
    ]


def test_a_column_that_the_batch_has_twice_is_named() -> None:
    table = batch(row("insert", 1, "x", "1"))
    for name in ("a", "v", "_sequence"):
        with pytest.raises(OptionsError, match=f"the batch has the column {name} more than once"):
            compacted(table.append_column(name, table[name]), ["a", "b"], "the table t")


@pytest.mark.parametrize("change", [{"_change_type": "DELETE"}, {"_change_type": None}, {"_sequence": None}], ids=str)
def test_rows_that_are_not_the_streams_are_refused(change: Row) -> None:
    with pytest.raises(OptionsError, match="leave the metadata columns in foreachBatch as they are"):
        compacted(batch(row("insert", 1, "x", "1"), row("delete", 1, "x", None) | change), ["a", "b"], "the table t")


def test_a_key_that_is_null_is_refused() -> None:
    """A delete has such a key where the key that is named is wider than that of the stream's table."""
    gone: Row = {"a": 1, "_change_type": "delete"}
    with pytest.raises(OptionsError, match=r"the key column b is null in a row .* Name the key of the stream's table"):
        compacted(batch(gone), ["a", "b"], "the table t")
    before: Row = {"_change_type": "update_preimage"}
    assert compacted(batch(gone, before, {"_change_type": "truncate"}), ["a"], "the table t").rows.num_rows == 0
    assert compacted(batch({"_change_type": "truncate"}, gone), ["a"], "the table t").deleted.all()


def test_rows_that_the_key_does_not_tell_apart_are_refused() -> None:
    """Snapshot rows under a key that is not the table's are such rows: all those of a batch have one `_sequence`."""
    table = batch(*(row("insert", 1, b, b) | {"_sequence": 7} for b in "xy"))
    with pytest.raises(
        OptionsError, match=r"rows with the same a and the same _sequence, .* Name the key of the stream"
    ):
        compacted(table, ["a"], "the table t")
    assert compacted(table, ["a", "b"], "the table t").rows.num_rows == 2
    assert compacted(pa.concat_tables([table, table]), ["a", "b"], "the table t").rows.num_rows == 2


@pytest.mark.parametrize(("name", "marks"), [("text", ["text"]), ("", [])], ids=["renamed", "left out"])
def test_a_marked_column_that_the_batch_does_not_have_is_taken_for_no_null(name: str, marks: list[str]) -> None:
    rows = batch(row("insert", 1, "x", "1"), row("update_postimage", 2, "x", "1", ["v"]))
    without = rows.rename_columns([name if each == "v" else each for each in SCHEMA.names]) if name else rows.drop("v")
    with pytest.raises(OptionsError, match="marks values of the column v, which the batch does not have") as refused:
        compacted(without, ["a", "b"], "the table t")
    assert "transform(_unchanged_columns, c -> if(c = 'v', 'the other name', c))" in str(refused.value)
    assert "array_remove(_unchanged_columns, 'v')" in str(refused.value)
    mended = without.drop("_unchanged_columns").append_column("_unchanged_columns", pa.array([None, marks]))
    last = compacted(mended, ["a", "b"], "the table t")
    assert last.rows.column_names == [each for each in without.column_names if not each.startswith("_")]
    assert {column: mask.tolist() for column, mask in last.kept.items()} == ({name: [False, True]} if name else {})


def test_a_value_that_was_left_out_while_the_key_changed_is_nowhere_to_be_had() -> None:
    moved = batch(row("delete", 1, "x", None), row("insert", 2, "x", "1", ["w"]))
    with pytest.raises(
        UnchangedToastError, match=r"for the table t, .*changed the key of a row and left its large value of column w"
    ):
        compacted(moved, ["a", "b"], "the table t")
    deleted = batch(row("insert", 2, "x", "1", ["w"]), row("delete", 2, "x", None))
    assert compacted(deleted, ["a", "b"], "the table t").deleted.all()


def test_a_batch_without_what_is_needed_is_refused() -> None:
    with pytest.raises(OptionsError, match=r"the batch has no column id; it has a, b, v"):
        compacted(batch(), ["a", "id"], "the table t")


def test_nan_is_one_key() -> None:
    keys = pa.array([float("nan"), 1.0, float("nan"), -0.0, 0.0])
    names = ["k", "v", "_change_type", "_commit_version", "_sequence"]
    values = pa.array(["first", "one", "last", "zero", "0"])
    rows = pa.table([keys, values, pa.array(["insert"] * 5), pa.array([1] * 5), pa.array(range(5))], names)
    assert set(compacted(rows, ["k"], "the table t").rows["v"].to_pylist()) == {"0", "last", "one"}
