"""The columns of a batch in a Delta table: which it has, which it gets, and what their types hold."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from backfill.errors import OptionsError, TableError, UnsupportedTypeError
from backfill.sinks.delta import apply_to
from tests.collected import Rows
from tests.sinks.batches import TRUNCATE, Apply, batch_of, content, made_of, row


def test_names_of_columns_may_hold_anything(tmp_path: Path) -> None:
    odd = {"a": 'a`"b', "v": "`v` it's.é"}
    apply = apply_to(path=str(tmp_path), key=[odd["a"], "b"], query="q")
    for number, rows in enumerate(
        [batch_of(row("insert", 1, "x", "1")), batch_of(row("update_postimage", 1, "x", "2", ["w"]))]
    ):
        apply(Rows(rows.table.rename_columns([odd.get(name, name) for name in rows.table.column_names])), number)
    assert content(tmp_path) == [(1, "x", "2", "1")]


def test_a_text_that_is_beyond_every_number_is_refused(tmp_path: Path, apply: Apply) -> None:
    columns = [("a", pa.int32()), ("b", pa.string()), ("v", pa.float64()), ("w", pa.float64())]
    DeltaTable.create(tmp_path, schema=pa.schema([pa.field(*column) for column in columns]))
    apply(batch_of(row("insert", 1, "x", "-Infinity"), row("insert", 2, "x", "1.50")), 0)
    assert content(tmp_path) == [(1, "x", -math.inf, -math.inf), (2, "x", 1.5, 1.5)]
    with pytest.raises(TableError, match="column 'v' of the Delta table is double and cannot hold all values"):
        apply(batch_of(row("insert", 3, "x", "1e400")), 1)


def test_a_table_gets_the_columns_that_a_batch_has_more_where_that_is_asked_for(tmp_path: Path) -> None:
    apply = apply_to(path=str(tmp_path), key=["a", "b"], query="q", merge_schema=True)
    apply(batch_of(row("insert", 1, "x", "1"), row("insert", 2, "x", "2"), row("insert", 3, "x", "3")), 0)
    at = datetime(2026, 1, 1)  # noqa: DTZ001 - a time without a zone is a feature that a Delta table has to have
    wide = batch_of(row("update_postimage", 1, "x", "4", ["w"]), row("delete", 2, "x", None))
    wide = wide.having(at=[at, None], Tags=[["t"], None])
    apply(wide, 1)
    version = DeltaTable(tmp_path).version()
    apply(wide, 1)
    assert DeltaTable(tmp_path).version() == version
    assert content(tmp_path) == [(1, "x", "4", "1", at, ["t"]), (3, "x", "3", "3", None, None)]
    apply(batch_of(row("update_postimage", 1, "x", "5")), 2)
    assert content(tmp_path) == [(1, "x", "5", "5", at, ["t"]), (3, "x", "3", "3", None, None)]


def test_a_column_that_the_table_cannot_get_is_refused(tmp_path: Path) -> None:
    apply = apply_to(path=str(tmp_path), key=["a", "b"], query="q", merge_schema=True)
    apply(batch_of(row("insert", 1, "x", "1")), 0)
    one = batch_of(row("insert", 2, "x", "1"))
    with pytest.raises(OptionsError, match="has V as v, and Delta's names do not differ by upper and lower case"):
        apply(one.having(V=["1"]), 1)
    other = apply_to(path=str(tmp_path), key=["id", "b"], query="other", merge_schema=True)
    with pytest.raises(OptionsError, match=r"no column id; it has a, b, v, w\..*unless it belongs to the key"):
        other(one.having(id=[2]), 0)
    with pytest.raises(UnsupportedTypeError, match="column 'more' is a time64"):
        apply(one.having(more=[time(1)]), 1)
    both = one.having(more=[1], More=[1])
    with pytest.raises(OptionsError, match="the batch has the columns more and More, and Delta's names do not differ"):
        apply(both, 1)
    with pytest.raises(OptionsError, match="the batch has the columns more and More, and Delta's names do not differ"):
        apply_to(path=str(tmp_path / "new"), key=["a", "b"], query="q")(both, 0)
    assert DeltaTable(tmp_path).version() == 1
    assert content(tmp_path) == [(1, "x", "1", "1")]


NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)

SPAN = pa.struct([("from", pa.int64()), ("upto", pa.int64())])


def applied(folder: Path, kind: pa.DataType, values: pa.Array[Any]) -> list[Any]:
    """Returns what a column of this type holds after a batch with these values."""
    rows = made_of(["insert"] * len(values), a=range(len(values)), v=values)
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
        (pa.array(["314159e-400"]), pa.decimal128(38, 37)),
        (pa.array([Decimal("-1234567890123456789012345678901.1234567")]), pa.decimal128(38, 10)),
    ],
    ids=lambda item: str(item.type if isinstance(item, pa.Array) else item),
)
def test_a_column_that_would_round_or_cut_a_value_is_refused(
    tmp_path: Path, values: pa.Array[Any], kind: pa.DataType
) -> None:
    with pytest.raises(TableError, match=r"column 'v' of the Delta table is .* cannot hold all values") as refused:
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
        (
            pa.array([[Decimal("-0.009999999999999"), None], None]),
            pa.list_(pa.float64()),
            [[-0.009999999999999, None], None],
        ),
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
    rows = made_of(["insert"], a=[1], v=values)
    apply = apply_to(path=str(tmp_path), key=["a"], query="q")
    with pytest.raises(UnsupportedTypeError, match=message):
        apply(rows, 0)
    assert not DeltaTable.is_deltatable(str(tmp_path))


def test_a_generated_column_has_to_be_one_of_the_batch(tmp_path: Path, apply: Apply) -> None:
    """`deltalake` would leave the column's value of an updated row as it was, and then refuses the row."""
    rows = batch_of(row("insert", 1, "x", "1"))
    DeltaTable.create(tmp_path, schema=rows.table.select(["a", "b", "v", "w"]).schema)
    [log] = (tmp_path / "_delta_log").glob("*.json")
    # Add a generated column as Spark does.
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
    apply(rows, 0)
    rows = batch_of(row("update_postimage", 1, "x", "a"))
    with pytest.raises(TableError, match="If a column is generated, the batch needs it"):
        apply(rows, 1)
    apply(rows.having(more=["A"]), 1)
    assert content(tmp_path) == [(1, "x", "a", "a", "A")]


@pytest.mark.parametrize("rule", ["column", "constraint"])
def test_deletes_of_rows_that_are_not_there_break_no_rule(tmp_path: Path, apply: Apply, rule: str) -> None:
    """With the change data feed, `deltalake` checks such deletes against each rule, as rows of nulls."""
    first = batch_of(row("insert", 1, "x", "1"), row("delete", 2, "x", None))
    fields = [field.with_nullable(rule != "column" or field.name != "a") for field in first.table.schema][:4]
    feed = {"delta.enableChangeDataFeed": "true"}
    DeltaTable.create(tmp_path, schema=pa.schema(fields), configuration=feed)
    if rule == "constraint":
        DeltaTable(tmp_path).alter.add_constraint({"few": "a < 9"})
    kept = row("update_postimage", 1, "x", "2", unchanged=["w"])
    steps = [
        (first, [(1, "x", "1", "1")]),
        (batch_of(row("delete", 3, "x", None), kept, row("delete", 0, "x", None)), [(1, "x", "2", "1")]),
        (batch_of(row("delete", 3, "x", None)), [(1, "x", "2", "1")]),
        (batch_of(TRUNCATE, row("delete", 1, "x", None), row("insert", 4, "x", "4")), [(4, "x", "4", "4")]),
        (batch_of(row("delete", 4, "x", None), row("delete", 5, "x", None)), []),
    ]
    for number, (rows, expected) in enumerate(steps):
        apply(rows, number)
        assert content(tmp_path) == expected


def test_a_table_whose_columns_have_numbers_in_its_files_is_refused(tmp_path: Path) -> None:
    rows = batch_of(row("insert", 1, "x", "1"))
    by_id = {"delta.columnMapping.mode": "id"}
    DeltaTable.create(tmp_path, schema=rows.table.select(["a", "b", "v", "w"]).schema, configuration=by_id)
    with pytest.raises(TableError, match="have numbers in its files"):
        apply_to(path=str(tmp_path), key=["a", "b"], query="q")(rows, 0)
