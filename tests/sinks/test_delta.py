"""A Delta table follows batches as the model of `test_compacted` does."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, time, timedelta
from decimal import Context, Decimal
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from backfill.arrow.batches import coalesced
from backfill.errors import (
    OptionsError,
    StateError,
    TableBusyError,
    TableError,
    UnchangedToastError,
    UnsupportedTypeError,
)
from backfill.sinks import delta
from backfill.sinks.delta import apply_to, start_over
from backfill.sinks.delta.merge import KEYS_AT_ONCE, merge
from tests.sinks.test_compacted import Row, batch, row


class Rows:
    """What the sink asks of a DataFrame."""

    def __init__(self, *rows: Row) -> None:
        self.table = batch(*rows)

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        return self.table


def content(path: Path) -> list[tuple[Any, ...]]:
    rows = DeltaTable(path).to_pyarrow_table().to_pylist()
    return sorted(tuple(row.values()) for row in rows)


TRUNCATE: Row = {"_change_type": "truncate"}


def test_a_table_follows_and_a_batch_that_comes_again_makes_no_commit(tmp_path: Path) -> None:
    apply = apply_to(path=str(tmp_path), key=["a", "b"], query="q")
    first = Rows(row("insert", 1, "x", "1"), row("insert", 2, "x", "2"), row("insert", 3, "x", "3"))
    apply(first, 0)
    apply(first, 0)
    assert content(tmp_path) == [(1, "x", "1", "1"), (2, "x", "2", "2"), (3, "x", "3", "3")]
    version = DeltaTable(tmp_path).version()
    second = Rows(
        row("delete", 1, "x", None),
        row("insert", 1, "y", "4"),
        row("update_preimage", 2, "x", "2"),
        row("update_postimage", 2, "x", "5", ["w"]),
        row("insert", 4, "x", "6"),
        row("update_postimage", 4, "x", "7", ["v"]),
        row("delete", 9, "x", None),
    )
    apply(second, 1)
    apply(second, 1)
    assert DeltaTable(tmp_path).version() == version + 1
    assert content(tmp_path) == [(1, "y", "4", "4"), (2, "x", "5", "2"), (3, "x", "3", "3"), (4, "x", "6", "7")]
    apply(Rows(), 2)
    apply(Rows(row("insert", 8, "x", "8"), TRUNCATE, row("insert", 2, "x", "9")), 3)
    assert content(tmp_path) == [(2, "x", "9", "9")]
    apply(Rows(TRUNCATE), 4)
    assert content(tmp_path) == []


def test_names_of_columns_may_hold_anything(tmp_path: Path) -> None:
    odd = {"a": 'a`"b', "v": "`v` it's.é"}
    apply = apply_to(path=str(tmp_path), key=[odd["a"], "b"], query="q")
    for number, rows in enumerate(
        [Rows(row("insert", 1, "x", "1")), Rows(row("update_postimage", 1, "x", "2", ["w"]))]
    ):
        rows.table = rows.table.rename_columns([odd.get(name, name) for name in rows.table.column_names])
        apply(rows, number)
    assert content(tmp_path) == [(1, "x", "2", "1")]


def test_a_new_checkpoint_under_the_same_name_wants_an_empty_table(tmp_path: Path) -> None:
    apply = apply_to(path=str(tmp_path), key=["a", "b"], query="q")
    apply(Rows(row("insert", 1, "x", "1")), 0)
    other = Rows(row("insert", 1, "x", "1"), row("insert", 2, "x", "1"))
    with pytest.raises(StateError, match="'q' has applied batch 0, and batch 0 with other rows"):
        apply(other, 0)
    apply_to(path=str(tmp_path), key=["a", "b"], query="second")(other, 0)
    start_over(path=str(tmp_path), query="q")
    assert content(tmp_path) == []
    apply(other, 0)
    assert len(content(tmp_path)) == 2


def test_a_table_that_is_gone_is_not_made_again_in_mid_stream(tmp_path: Path) -> None:
    table = tmp_path / "orders"
    apply = apply_to(path=str(table), key=["a", "b"], query="q")
    apply(Rows(), 0)
    apply(Rows(row("insert", 1, "x", "1")), 1)
    table.rename(tmp_path / "elsewhere")
    with pytest.raises(TableError, match=rf"no Delta table at {table}; batch 2 is not the first.*[Pp]ut it back"):
        apply(Rows(row("insert", 2, "x", "1")), 2)
    assert not table.exists()
    (tmp_path / "elsewhere").rename(table)
    apply(Rows(row("insert", 2, "x", "1")), 2)
    assert len(content(table)) == 2


def test_a_table_is_the_same_from_every_working_directory(tmp_path: Path) -> None:
    """A relative path would lead to another one."""
    for path in ("lake/orders", "./orders", ""):
        with pytest.raises(OptionsError, match=f"path is '{path}'; expected an absolute path, or a URI"):
            apply_to(path=path, key=["a"], query="q")
        with pytest.raises(OptionsError, match="expected an absolute path"):
            start_over(path=path, query="q")
    apply_to(path=tmp_path.as_uri(), key=["a", "b"], query="q")(Rows(row("insert", 1, "x", "1")), 0)
    assert len(content(tmp_path)) == 1
    apply_to(path="s3://bucket/orders", key=["a"], query="q")


def test_a_nan_is_one_key_in_whatever_form_it_comes(tmp_path: Path) -> None:
    def rows(*changes: tuple[int, str, str | None]) -> Rows:
        made = Rows()
        keys = np.array([bits for bits, _, _ in changes], np.uint64).view(np.float64)
        names = ["k", "v", "_change_type", "_commit_version", "_sequence"]
        kinds, values = [kind for _, kind, _ in changes], pa.array([value for _, _, value in changes], pa.string())
        numbers = range(len(changes))
        made.table = pa.table([pa.array(keys), values, pa.array(kinds), pa.array(numbers), pa.array(numbers)], names)
        return made

    one, other = 0x7FF8000000000000, 0xFFF8000000000000
    apply = apply_to(path=str(tmp_path), key=["k"], query="q")
    apply(rows((other, "insert", "1")), 0)
    apply(rows((other, "delete", None), (one, "insert", "2")), 1)
    apply(rows((other, "update_postimage", "3")), 2)
    assert [row[1] for row in content(tmp_path)] == ["3"]
    apply(rows((one, "delete", None), (0, "insert", "zero")), 3)
    assert [row[1] for row in content(tmp_path)] == ["zero"]
    apply(rows((one, "insert", "4"), (1 << 63, "update_postimage", "minus zero")), 4)
    assert sorted(row[1] for row in content(tmp_path)) == ["4", "minus zero"]


def test_nothing_is_left_of_a_row_from_before_a_truncation(tmp_path: Path) -> None:
    columns = [("a", pa.int32()), ("b", pa.string()), ("v", pa.string()), ("w", pa.string()), ("note", pa.string())]
    DeltaTable.create(tmp_path, schema=pa.schema([pa.field(*column) for column in columns]))
    apply = apply_to(path=str(tmp_path), key=["a", "b"], query="q")
    apply(Rows(row("insert", 1, "x", "1")), 0)
    DeltaTable(tmp_path).update(updates={"note": "'old'"})
    apply(Rows(row("update_postimage", 1, "x", "2")), 1)
    assert content(tmp_path) == [(1, "x", "2", "2", "old")]
    apply(Rows(TRUNCATE, row("insert", 1, "x", "3")), 2)
    assert content(tmp_path) == [(1, "x", "3", "3", None)]


@pytest.mark.parametrize(
    ("kind", "keys"),
    [(pa.float32(), [1.0, 2.0]), (pa.int32(), ["1", "2"]), (pa.decimal128(9, 2), ["1.0", "2.00"])],
    ids=str,
)
def test_keys_that_may_be_one_in_the_target_are_refused_from_the_first_batch_on(
    tmp_path: Path, kind: pa.DataType, keys: list[object]
) -> None:
    DeltaTable.create(tmp_path, schema=pa.schema([("k", kind), ("v", pa.int64())]))
    rows, metadata = Rows(), {"_change_type": ["insert"] * 2, "_commit_version": [1] * 2, "_sequence": [1] * 2}
    rows.table = pa.table({"k": keys, "v": [1, 2], **metadata})
    with pytest.raises(TableError, match=r"may take different values of the source, .* for the same one"):
        apply_to(path=str(tmp_path), key=["k"], query="q")(rows, 0)
    assert content(tmp_path) == []


@pytest.mark.parametrize(
    ("kind", "keys"),
    [(pa.int64(), pa.array([1, 2], pa.int16())), (pa.decimal128(9, 2), pa.array([1, 2], pa.decimal128(5, 1)))],
    ids=str,
)
def test_a_key_may_be_of_a_larger_type_in_the_target(tmp_path: Path, kind: pa.DataType, keys: pa.Array[Any]) -> None:
    DeltaTable.create(tmp_path, schema=pa.schema([("k", kind), ("v", pa.int64())]))
    rows, metadata = Rows(), {"_change_type": ["insert"] * 2, "_commit_version": [1] * 2, "_sequence": [1] * 2}
    rows.table = pa.table({"k": keys, "v": [1, 2], **metadata})
    apply_to(path=str(tmp_path), key=["k"], query="q")(rows, 0)
    assert sorted(row[1] for row in content(tmp_path)) == [1, 2]


def test_a_key_is_of_single_values(tmp_path: Path) -> None:
    rows = Rows()
    rows.table = pa.table({"k": [[1]], "_change_type": ["insert"], "_commit_version": [1], "_sequence": [1]})
    with pytest.raises(OptionsError, match=r"the key column k is a list<.*int64>; expected one of single values"):
        apply_to(path=str(tmp_path), key=["k"], query="q")(rows, 0)


def test_a_text_that_is_beyond_every_number_is_refused(tmp_path: Path) -> None:
    columns = [("a", pa.int32()), ("b", pa.string()), ("v", pa.float64()), ("w", pa.float64())]
    DeltaTable.create(tmp_path, schema=pa.schema([pa.field(*column) for column in columns]))
    apply = apply_to(path=str(tmp_path), key=["a", "b"], query="q")
    apply(Rows(row("insert", 1, "x", "-Infinity"), row("insert", 2, "x", "1.50")), 0)
    assert content(tmp_path) == [(1, "x", -math.inf, -math.inf), (2, "x", 1.5, 1.5)]
    with pytest.raises(TableError, match="column 'v' of the Delta table is double and does not hold all values"):
        apply(Rows(row("insert", 3, "x", "1e400")), 1)


def test_a_path_in_which_deltalake_makes_no_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match=r"makes no table at a path with \[ or \]"):
        apply_to(path=str(tmp_path / "a[b]"), key=["a", "b"], query="q")(Rows(row("insert", 1, "x", "1")), 0)


def widened(rows: Rows, name: str, *values: Any) -> Rows:
    """With one more column."""
    rows.table = rows.table.append_column(name, pa.array(values))
    return rows


def test_a_table_gets_the_columns_that_a_batch_has_more_where_that_is_asked_for(tmp_path: Path) -> None:
    apply = apply_to(path=str(tmp_path), key=["a", "b"], query="q", merge_schema=True)
    apply(Rows(row("insert", 1, "x", "1"), row("insert", 2, "x", "2"), row("insert", 3, "x", "3")), 0)
    at = datetime(2026, 1, 1)  # noqa: DTZ001 - a time without a zone is a feature that a Delta table has to have
    wide = widened(Rows(row("update_postimage", 1, "x", "4", ["w"]), row("delete", 2, "x", None)), "at", at, None)
    apply(widened(wide, "Tags", ["t"], None), 1)
    version = DeltaTable(tmp_path).version()
    apply(wide, 1)
    assert DeltaTable(tmp_path).version() == version
    assert content(tmp_path) == [(1, "x", "4", "1", at, ["t"]), (3, "x", "3", "3", None, None)]
    apply(Rows(row("update_postimage", 1, "x", "5")), 2)
    assert content(tmp_path) == [(1, "x", "5", "5", at, ["t"]), (3, "x", "3", "3", None, None)]


def test_a_column_that_the_table_cannot_get_is_refused(tmp_path: Path) -> None:
    apply = apply_to(path=str(tmp_path), key=["a", "b"], query="q", merge_schema=True)
    apply(Rows(row("insert", 1, "x", "1")), 0)
    with pytest.raises(OptionsError, match="has V as v, and Delta does not tell upper from lower case"):
        apply(widened(Rows(row("insert", 2, "x", "1")), "V", "1"), 1)
    other = apply_to(path=str(tmp_path), key=["id", "b"], query="other", merge_schema=True)
    with pytest.raises(OptionsError, match=r"no column id; it has a, b, v, w\..*unless it belongs to the key"):
        other(widened(Rows(row("insert", 2, "x", "1")), "id", 2), 0)
    with pytest.raises(UnsupportedTypeError, match="column 'more' is a time64"):
        apply(widened(Rows(row("insert", 2, "x", "1")), "more", time(1)), 1)
    both = widened(widened(Rows(row("insert", 2, "x", "1")), "more", 1), "More", 1)
    with pytest.raises(OptionsError, match="the batch has the columns more and More, and Delta does not tell"):
        apply(both, 1)
    with pytest.raises(OptionsError, match="the batch has the columns more and More, and Delta does not tell"):
        apply_to(path=str(tmp_path / "new"), key=["a", "b"], query="q")(both, 0)
    assert DeltaTable(tmp_path).version() == 1
    assert content(tmp_path) == [(1, "x", "1", "1")]


def test_what_cannot_be_applied_is_refused_and_leaves_no_trace(tmp_path: Path) -> None:
    apply = apply_to(path=str(tmp_path), key=["a", "b"], query="q")
    apply(Rows(row("insert", 1, "x", "1")), 0)
    with pytest.raises(UnchangedToastError, match="column w, and the target has no row to take it from"):
        apply(Rows(row("update_postimage", 2, "x", "1", ["w"])), 1)
    with pytest.raises(UnchangedToastError, match="column w, and the target has no row to take it from"):
        apply(Rows(TRUNCATE, row("update_postimage", 1, "x", "1", ["w"])), 1)
    wide = Rows(row("insert", 1, "x", "1"))
    wide.table = wide.table.append_column("more", pa.array([1]))
    with pytest.raises(
        OptionsError, match=r"the Delta table has no column more; it has a, b, v, w\..*merge_schema=True"
    ):
        apply(wide, 1)
    wrong = Rows(row("insert", 1, "x", "1"))
    wrong.table = wrong.table.set_column(wrong.table.column_names.index("a"), "a", pa.array(["secret"]))
    with pytest.raises(TableError, match="column 'a' of the Delta table is int64") as refused:
        apply(wrong, 1)
    assert "secret" not in str(refused.value)
    assert content(tmp_path) == [(1, "x", "1", "1")]
    apply(Rows(row("delete", 1, "x", "1")), 1)
    assert content(tmp_path) == []


ROW: Row = {"a": 1, "_change_type": "insert", "_commit_version": 1, "_sequence": 1}
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
SPAN = pa.struct([("from", pa.int64()), ("upto", pa.int64())])


def applied(folder: Path, kind: pa.DataType, values: pa.Array[Any]) -> list[Any]:
    """What a column of this type holds after a batch with these values."""
    rows = Rows(*[ROW | {"a": at} for at in range(len(values))])
    rows.table = rows.table.select(["a", "_change_type", "_commit_version", "_sequence"]).append_column("v", values)
    DeltaTable.create(folder, schema=pa.schema([("a", pa.int32()), ("v", kind)]))
    apply_to(path=str(folder), key=["a"], query="q")(rows, 0)
    return DeltaTable(folder).to_pyarrow_table().sort_by("a")["v"].to_pylist()


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pa.array([Decimal("31.4159")]), pa.decimal128(9, 2)),
        (pa.array([31.4159]), pa.int64()),
        (pa.array([31.4159]), pa.decimal128(9, 2)),
        (pa.array(["31.4159"]), pa.decimal128(9, 2)),
        (pa.array(["31.4159"]), pa.int64()),
        (pa.array([314159]), pa.int16()),
        (pa.array([314159]), pa.bool_()),
        (pa.array([NEW_YEAR, NEW_YEAR + timedelta(microseconds=314159)]), pa.date32()),
        (pa.array([[NEW_YEAR + timedelta(microseconds=314159)]]), pa.list_(pa.date32())),
        (pa.array([[Decimal("31.4159")]]), pa.list_(pa.decimal128(9, 2))),
        (pa.array([{"from": 1, "upto": 314159, "more": 2}]), SPAN),
        (pa.array([[314159]]), pa.string()),
        (pa.array([3.14159e300]), pa.float32()),
        (pa.array([[1.0, None], None, [-3.14159e300]]), pa.list_(pa.float32())),
        (pa.array([["1.5", "3.14159e400"]]), pa.list_(pa.float64())),
        (pa.array(["9" * 39]), pa.decimal128(38, 0)),
        (pa.array([["9" * 39]]), pa.list_(pa.decimal128(38, 0))),
        (pa.array(["3.14159e38"]), pa.decimal128(38, 8)),
        (pa.array(["3.14159e-60"]), pa.decimal128(38, 9)),
        (pa.array([Decimal("-1234567890123456789012345678901.1234567")]), pa.decimal128(38, 10)),
    ],
    ids=lambda item: str(item.type if isinstance(item, pa.Array) else item),
)
def test_a_column_that_would_round_or_cut_a_value_is_refused(
    tmp_path: Path, values: pa.Array[Any], kind: pa.DataType
) -> None:
    with pytest.raises(TableError, match=r"column 'v' of the Delta table is .* does not hold all values") as refused:
        applied(tmp_path, kind, values)
    assert "4159" not in str(refused.value)
    assert content(tmp_path) == []


@pytest.mark.parametrize(
    ("values", "kind", "held"),
    [
        (pa.array([Decimal("1.2000"), None]), pa.decimal128(9, 2), [Decimal("1.20"), None]),
        (pa.array([1.5]), pa.decimal128(9, 2), [Decimal("1.50")]),
        (pa.array(["01.5"]), pa.decimal128(9, 2), [Decimal("1.50")]),
        (pa.array([2.0, None]), pa.int64(), [2, None]),
        (pa.array([Decimal("1.1")]), pa.float64(), [1.1]),
        (pa.array([Decimal("-0.009999999999999")]), pa.float64(), [-0.009999999999999]),
        (pa.array(["1." + "0" * 40, "3.1e3"]), pa.decimal128(38, 9), [1, 3100]),
        (pa.array([1.5]), pa.float32(), [1.5]),
        (pa.array([math.inf, None, -math.inf]), pa.float32(), [math.inf, None, -math.inf]),
        (pa.array([["Infinity", None], None]), pa.list_(pa.float64()), [[math.inf, None], None]),
        (pa.array([300]), pa.int16(), [300]),
        (pa.array([1, 0]), pa.bool_(), [True, False]),
        (pa.array([None, None]), pa.bool_(), [None, None]),
        (pa.array([NEW_YEAR, None]), pa.date32(), [NEW_YEAR.date(), None]),
        (pa.array([[NEW_YEAR], []]), pa.list_(pa.date32()), [[NEW_YEAR.date()], []]),
        (pa.array([{"from": 1, "upto": 2}, None]), SPAN, [{"from": 1, "upto": 2}, None]),
        (pa.array(["x"]), pa.string(), ["x"]),
    ],
    ids=lambda item: str(item.type if isinstance(item, pa.Array) else item),
)
def test_a_column_of_another_type_holds_what_it_can_as_it_is(
    tmp_path: Path, values: pa.Array[Any], kind: pa.DataType, held: list[Any]
) -> None:
    assert applied(tmp_path, kind, values) == held


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pa.array([time(12)], pa.time64("ns")), r"column 'v' is a time64\[ns\], for which Delta has no type"),
        (pa.array([None]), "column 'v' has the type void, which cannot be carried"),
    ],
)
def test_a_table_that_cannot_have_a_column_is_not_made(tmp_path: Path, values: pa.Array[Any], message: str) -> None:
    rows = Rows(ROW)
    rows.table = rows.table.select(["a", "_change_type", "_commit_version", "_sequence"]).append_column("v", values)
    apply = apply_to(path=str(tmp_path), key=["a"], query="q")
    with pytest.raises(UnsupportedTypeError, match=message):
        apply(rows, 0)
    assert not DeltaTable.is_deltatable(str(tmp_path))


def test_a_row_that_a_constraint_refuses_is_said_to_be_such(tmp_path: Path) -> None:
    apply = apply_to(path=str(tmp_path), key=["a", "b"], query="q")
    apply(Rows(row("insert", 1, "x", "1")), 0)
    DeltaTable(tmp_path).alter.add_constraint({"few": "a < 2"})
    with pytest.raises(TableError, match=r"a constraint of the Delta table .* refuses a row .* DROP CONSTRAINT"):
        apply(Rows(row("insert", 2, "x", "1")), 1)
    DeltaTable(tmp_path).alter.drop_constraint("few")
    apply(Rows(row("insert", 2, "x", "1")), 1)
    assert len(content(tmp_path)) == 2


def test_a_generated_column_has_to_be_one_of_the_batch(tmp_path: Path) -> None:
    """Of a row that is updated `deltalake` would leave its value as it was, and then refuses it."""
    rows = Rows(row("insert", 1, "x", "1"))
    DeltaTable.create(tmp_path, schema=rows.table.select(["a", "b", "v", "w"]).schema)
    [log] = (tmp_path / "_delta_log").glob("*.json")
    # As Spark writes it.
    more = {"name": "more", "type": "string", "nullable": True, "metadata": {"delta.generationExpression": "upper(v)"}}
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "protocol" in action:
            action["protocol"] = {"minReaderVersion": 1, "minWriterVersion": 4}
        elif "metaData" in action:
            schema = json.loads(action["metaData"]["schemaString"])
            schema["fields"].append(more)
            action["metaData"]["schemaString"] = json.dumps(schema)
    log.write_text("\n".join(map(json.dumps, actions)))
    apply = apply_to(path=str(tmp_path), key=["a", "b"], query="q")
    apply(rows, 0)
    rows = Rows(row("update_postimage", 1, "x", "a"))
    with pytest.raises(TableError, match="A generated column has to be one of the batch"):
        apply(rows, 1)
    rows.table = rows.table.append_column("more", pa.array(["A"]))
    apply(rows, 1)
    assert content(tmp_path) == [(1, "x", "a", "a", "A")]


def test_large_values_stay_where_the_key_is_narrower_in_the_table(tmp_path: Path) -> None:
    columns: list[tuple[str, pa.DataType]] = [("a", pa.int32()), *((name, pa.string()) for name in "bvw")]
    DeltaTable.create(tmp_path, schema=pa.schema(columns))
    apply = apply_to(path=str(tmp_path), key=["a", "b"], query="q")
    apply(Rows(row("insert", 1, "x", "1")), 0)
    apply(Rows(row("update_postimage", 1, "x", "2", ["w"])), 1)
    assert content(tmp_path) == [(1, "x", "2", "1")]


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (b"x", UnsupportedTypeError, "column 'raw' is of the type binary and partitions the table"),
        ("", TableError, "the key column raw partitions the Delta table and is '' in a row"),
        (Decimal("-0.07"), TableError, "column raw partitions the Delta table and is negative, with a fraction"),
        ("__HIVE_DEFAULT_PARTITION__", TableError, "which is how deltalake names the folder of those that have none"),
    ],
)
def test_a_row_that_would_not_be_found_in_its_partition_is_refused(
    tmp_path: Path, value: Any, error: type[Exception], message: str
) -> None:
    rows = Rows(ROW)
    rows.table = rows.table.select(["a", "_change_type", "_commit_version", "_sequence"])
    rows.table = rows.table.append_column("raw", pa.array([value]))
    DeltaTable.create(tmp_path, schema=rows.table.select(["a", "raw"]).schema, partition_by=["raw"])
    with pytest.raises(error, match=message):
        apply_to(path=str(tmp_path), key=["a", "raw"], query="q")(rows, 0)


def test_a_table_whose_columns_have_numbers_in_its_files_is_refused(tmp_path: Path) -> None:
    rows = Rows(row("insert", 1, "x", "1"))
    by_id = {"delta.columnMapping.mode": "id"}
    DeltaTable.create(tmp_path, schema=rows.table.select(["a", "b", "v", "w"]).schema, configuration=by_id)
    with pytest.raises(TableError, match="told apart in its files by numbers"):
        apply_to(path=str(tmp_path), key=["a", "b"], query="q")(rows, 0)


def test_a_table_that_is_empty_already_is_started_over_too(tmp_path: Path) -> None:
    apply = apply_to(path=str(tmp_path), key=["a", "b"], query="q")
    apply(Rows(row("insert", 1, "x", "1")), 0)
    apply(Rows(row("delete", 1, "x", "1")), 1)
    assert content(tmp_path) == []
    start_over(path=str(tmp_path), query="q")
    apply(Rows(row("insert", 2, "x", "2")), 0)
    assert content(tmp_path) == [(2, "x", "2", "2")]


def test_a_query_has_a_name(tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match="query is ' '; expected a name that no other query"):
        apply_to(path=str(tmp_path), key=["a"], query=" ")


@pytest.mark.parametrize("none", ["", [], ()])
def test_a_key_has_columns(tmp_path: Path, none: list[str]) -> None:
    with pytest.raises(OptionsError, match=r"such as key=\['id'\]"):
        apply_to(path=str(tmp_path), key=none, query="q")


def test_a_key_is_a_list_of_columns(tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match=r"expected a list of columns, such as key=\['id'\]"):
        apply_to(path=str(tmp_path), key="id", query="q")


def test_the_keys_of_the_target_are_not_held_all_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And all of them are looked at, whatever batch they come in."""
    looked_at: list[int] = []

    def few(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
        assert rows == KEYS_AT_ONCE
        for each in coalesced(batches, 1):
            looked_at.append(each.num_rows)
            yield each

    monkeypatch.setattr(import_module("backfill.sinks.delta.merge"), "coalesced", few)
    apply = apply_to(path=str(tmp_path), key=["a", "b"], query="q")
    for number in range(3):
        apply(Rows(row("insert", number, "x", "1")), number)
    apply(Rows(row("update_postimage", 0, "x", "2", ["w"]), row("update_postimage", 2, "x", "2", ["w"])), 3)
    assert content(tmp_path) == [(0, "x", "2", "1"), (1, "x", "1", "1"), (2, "x", "2", "1")]
    assert set(looked_at) == {1}
    with pytest.raises(UnchangedToastError):
        apply(Rows(row("update_postimage", 2, "x", "3", ["w"]), row("update_postimage", 2, "y", "3", ["w"])), 4)


def test_files_without_keys_of_the_batch_are_not_read(tmp_path: Path) -> None:
    """Seen by taking one away: what goes on without it has not looked at it."""
    apply = apply_to(path=str(tmp_path), key=["a", "b"], query="q")
    apply(Rows(row("insert", 1, "x", "1")), 0)
    first = set(tmp_path.glob("*.parquet"))
    apply(Rows(row("insert", 5, "x", "1"), row("insert", 6, "x", "1")), 1)
    second = set(tmp_path.glob("*.parquet")) - first
    for file in first:
        file.rename(file.with_suffix(".gone"))
    apply(Rows(row("delete", 5, "x", "1"), row("update_postimage", 6, "x", "2"), row("insert", 7, "x", "2")), 2)
    for file in first:
        file.with_suffix(".gone").rename(file)
    for file in second:
        file.unlink()
    assert content(tmp_path) == [(1, "x", "1", "1"), (6, "x", "2", "2"), (7, "x", "2", "2")]


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
@pytest.mark.parametrize("second", [[math.nan], [math.nan, 1.5]])
def test_nan_which_statistics_do_not_know_is_found_as_a_key(
    tmp_path: Path, kind: pa.DataType, second: list[float]
) -> None:
    apply = apply_to(path=str(tmp_path), key=["a"], query="q")
    for number, keys in enumerate([[1.5, math.nan], second]):
        rows = Rows(*[row("update_postimage", 0, "x", str(number)) for _ in keys])
        rows.table = rows.table.set_column(0, "a", pa.array(keys, kind))
        apply(rows, number)
        assert len(content(tmp_path)) == 2


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_a_value_is_kept_where_the_sign_of_a_zero_in_the_key_changes(tmp_path: Path, kind: pa.DataType) -> None:
    apply = apply_to(path=str(tmp_path), key=["a"], query="q")
    for number, (zero, unchanged) in enumerate([(0.0, None), (-0.0, ["w"]), (0.0, ["w"])]):
        rows = Rows(row("update_postimage", 0, "x", str(number), unchanged))
        rows.table = rows.table.set_column(0, "a", pa.array([zero], kind))
        apply(rows, number)
        ((found, *values),) = content(tmp_path)
        assert (math.copysign(1, found), values) == (math.copysign(1, zero), ["x", str(number), "0"])


@pytest.mark.parametrize(("digits", "scale"), [(15, 2), (16, 2), (19, 0), (20, 4), (38, 0)])
def test_a_key_of_more_digits_than_statistics_have_is_found(tmp_path: Path, digits: int, scale: int) -> None:
    keys = [Decimal(10**digits - 5 + at).scaleb(-scale, Context(digits)) for at in range(5)]
    apply = apply_to(path=str(tmp_path), key=["a"], query="q")
    for number, change_type in enumerate(["insert", "update_postimage", "delete"]):
        rows = Rows(*[row(change_type, 0, "x", str(number)) for _ in keys])
        rows.table = rows.table.set_column(0, "a", pa.array(keys, pa.decimal128(digits, scale)))
        apply(rows, number)
        assert [found[0] for found in content(tmp_path)] == ([] if change_type == "delete" else keys)


def test_large_values_stay_in_a_table_with_arrays(tmp_path: Path) -> None:
    """Rows are found by their keys alone: not every type can be joined."""
    apply = apply_to(path=str(tmp_path), key=["a", "b"], query="q")
    apply(WithArrays(row("insert", 1, "x", "1")), 0)
    apply(WithArrays(row("update_postimage", 1, "x", "2", ["w"])), 1)
    assert content(tmp_path) == [(1, "x", "2", "1", [1])]


class WithArrays(Rows):
    """The same rows with a column of arrays."""

    def __init__(self, *rows: Row) -> None:
        super().__init__(*rows)
        self.table = self.table.append_column("tags", pa.array([[1]] * len(rows)))


def test_a_driver_does_not_go_on_into_a_table_that_was_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the new query has come to the batch after which this one began."""
    apply = apply_to(path=str(tmp_path), key=["a", "b"], query="q")
    apply(Rows(row("insert", 1, "x", "1")), 0)

    def late(*given: Any) -> None:
        monkeypatch.setattr(delta, "merge", merge)
        start_over(path=str(tmp_path), query="q")
        apply(Rows(row("insert", 7, "x", "7"), row("insert", 8, "x", "8")), 0)
        merge(*given)

    monkeypatch.setattr(delta, "merge", late)
    with pytest.raises(TableBusyError, match="another writer"):
        apply(Rows(row("update_postimage", 1, "x", "2")), 1)
    assert content(tmp_path) == [(7, "x", "7", "7"), (8, "x", "8", "8")]


@pytest.mark.parametrize("cut", [False, True], ids=["as it is", "as Spark has it"])
@pytest.mark.parametrize("year", [7000, 9999])
def test_a_row_is_found_by_a_time_that_is_far_off(tmp_path: Path, year: int, cut: bool) -> None:
    """Spark cuts times to milliseconds in a file's statistics."""
    far = pa.array([datetime(year, 6, 1, 0, 0, 0, 2664, tzinfo=UTC)], pa.timestamp("us", "UTC"))
    apply = apply_to(path=str(tmp_path), key=["a"], query="q")
    for number, change in enumerate(["insert", "update_postimage", "delete"]):
        rows = Rows()
        rows.table = pa.table({"a": far, "_change_type": [change], "_commit_version": [1], "_sequence": [number]})
        apply(rows, number)
        if cut:
            commit = tmp_path / f"_delta_log/{number + 1:020}.json"
            commit.write_text(re.sub(r"(\.002)664", r"\1", commit.read_text()))
        assert len(content(tmp_path)) == (change != "delete")
