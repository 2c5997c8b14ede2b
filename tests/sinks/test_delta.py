"""A Delta table follows batches as the model of `test_compacted` does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from backfill.errors import (
    DatabaseSetupError,
    OptionsError,
    StateError,
    TableBusyError,
    TableError,
    UnchangedToastError,
)
from backfill.sinks import delta
from backfill.sinks.delta import apply_to, start_over
from backfill.sinks.delta.merge import merge
from tests.full_disk import room_for
from tests.sinks.batches import TRUNCATE, Apply, batch_of, content, row


def test_a_table_follows_and_a_batch_that_comes_again_makes_no_commit(tmp_path: Path, apply: Apply) -> None:
    first = batch_of(row("insert", 1, "x", "1"), row("insert", 2, "x", "2"), row("insert", 3, "x", "3"))
    apply(first, 0)
    apply(first, 0)
    assert content(tmp_path) == [(1, "x", "1", "1"), (2, "x", "2", "2"), (3, "x", "3", "3")]
    version = DeltaTable(tmp_path).version()
    second = batch_of(
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
    apply(batch_of(), 2)
    apply(batch_of(row("insert", 8, "x", "8"), TRUNCATE, row("insert", 2, "x", "9")), 3)
    assert content(tmp_path) == [(2, "x", "9", "9")]
    apply(batch_of(TRUNCATE), 4)
    assert content(tmp_path) == []


def test_a_new_checkpoint_under_the_same_name_wants_an_empty_table(tmp_path: Path, apply: Apply) -> None:
    apply(batch_of(row("insert", 1, "x", "1")), 0)
    other = batch_of(row("insert", 1, "x", "1"), row("insert", 2, "x", "1"))
    with pytest.raises(StateError, match="'q' has applied batch 0, and now it should apply batch 0 with other rows"):
        apply(other, 0)
    apply_to(path=str(tmp_path), key=["a", "b"], query="second")(other, 0)
    start_over(path=str(tmp_path), query="q")
    assert content(tmp_path) == []
    apply(other, 0)
    assert len(content(tmp_path)) == 2


def test_a_table_that_is_gone_is_not_made_again_in_mid_stream(tmp_path: Path) -> None:
    table = tmp_path / "orders"
    apply = apply_to(path=str(table), key=["a", "b"], query="q")
    apply(batch_of(), 0)
    apply(batch_of(row("insert", 1, "x", "1")), 1)
    table.rename(tmp_path / "elsewhere")
    with pytest.raises(TableError, match=rf"no Delta table at {table}; and batch 2 is not the first.*Restore"):
        apply(batch_of(row("insert", 2, "x", "1")), 2)
    assert not table.exists()
    (tmp_path / "elsewhere").rename(table)
    apply(batch_of(row("insert", 2, "x", "1")), 2)
    assert len(content(table)) == 2


def test_a_table_is_the_same_from_every_working_directory(tmp_path: Path) -> None:
    """A relative path, which would lead to another table, is refused."""
    for path in ("lake/orders", "./orders", ""):
        with pytest.raises(OptionsError, match=f"path is '{path}'; expected an absolute path, or a URI"):
            apply_to(path=path, key=["a"], query="q")
        with pytest.raises(OptionsError, match="expected an absolute path"):
            start_over(path=path, query="q")
    apply_to(path=tmp_path.as_uri(), key=["a", "b"], query="q")(batch_of(row("insert", 1, "x", "1")), 0)
    assert len(content(tmp_path)) == 1
    apply_to(path="s3://bucket/orders", key=["a"], query="q")


def test_nothing_is_left_of_a_row_from_before_a_truncation(tmp_path: Path, apply: Apply) -> None:
    columns = [("a", pa.int32()), ("b", pa.string()), ("v", pa.string()), ("w", pa.string()), ("note", pa.string())]
    DeltaTable.create(tmp_path, schema=pa.schema([pa.field(*column) for column in columns]))
    apply(batch_of(row("insert", 1, "x", "1")), 0)
    DeltaTable(tmp_path).update(updates={"note": "'old'"})
    apply(batch_of(row("update_postimage", 1, "x", "2")), 1)
    assert content(tmp_path) == [(1, "x", "2", "2", "old")]
    apply(batch_of(TRUNCATE, row("insert", 1, "x", "3")), 2)
    assert content(tmp_path) == [(1, "x", "3", "3", None)]


def test_a_path_in_which_deltalake_makes_no_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match=r"makes no table at a path with \[ or \]"):
        apply_to(path=str(tmp_path / "a[b]"), key=["a", "b"], query="q")(batch_of(row("insert", 1, "x", "1")), 0)


@pytest.mark.parametrize("rows", [[row("update_postimage", 1, "x", "new")], []], ids=["for its rows", "for its commit"])
def test_a_full_disk_is_reported_and_the_batch_comes_again(tmp_path: Path, apply: Apply, rows: list[Any]) -> None:
    apply(batch_of(row("insert", 1, "x", "old")), 0)
    with (
        room_for(100),
        pytest.raises(DatabaseSetupError, match=rf"{tmp_path} cannot be written: .* too large. Make room"),
    ):
        apply(batch_of(*rows), 1)
    apply(batch_of(*rows), 1)
    apply(batch_of(*rows), 1)
    assert content(tmp_path) == [(1, "x", *["new" if rows else "old"] * 2)]
    assert DeltaTable(tmp_path).version() == 2


def test_what_cannot_be_applied_is_refused_and_leaves_no_trace(tmp_path: Path, apply: Apply) -> None:
    apply(batch_of(row("insert", 1, "x", "1")), 0)
    with pytest.raises(
        UnchangedToastError, match=rf"column w, and the Delta table {tmp_path} has no row to take it from"
    ):
        apply(batch_of(row("update_postimage", 2, "x", "1", ["w"])), 1)
    with pytest.raises(
        UnchangedToastError, match=rf"column w, and the Delta table {tmp_path} has no row to take it from"
    ):
        apply(batch_of(TRUNCATE, row("update_postimage", 1, "x", "1", ["w"])), 1)
    one = batch_of(row("insert", 1, "x", "1"))
    words = r"the Delta table has no column more; it has a, b, v, w\..*merge_schema=True"
    with pytest.raises(OptionsError, match=words):
        apply(one.having(more=[1]), 1)
    with pytest.raises(TableError, match="column 'a' of the Delta table is int64") as refused:
        apply(one.having(a=["secret"]), 1)
    assert "secret" not in str(refused.value)
    assert content(tmp_path) == [(1, "x", "1", "1")]
    apply(batch_of(row("delete", 1, "x", "1")), 1)
    assert content(tmp_path) == []


def test_a_row_that_a_constraint_refuses_is_reported_as_such(tmp_path: Path, apply: Apply) -> None:
    """This holds whatever text the row has, which is in the error of `deltalake`."""
    apply(batch_of(row("insert", 1, "x", "1")), 0)
    DeltaTable(tmp_path).alter.add_constraint({"few": "a < 2"})
    with pytest.raises(TableError, match=r"a constraint of the Delta table .* refuses a row .* DROP CONSTRAINT"):
        apply(batch_of(row("insert", 2, "x", "No such file or directory (os error 28)")), 1)
    DeltaTable(tmp_path).alter.drop_constraint("few")
    apply(batch_of(row("insert", 2, "x", "1")), 1)
    assert len(content(tmp_path)) == 2


def test_a_table_that_is_empty_already_is_started_over_too(tmp_path: Path, apply: Apply) -> None:
    apply(batch_of(row("insert", 1, "x", "1")), 0)
    apply(batch_of(row("delete", 1, "x", "1")), 1)
    assert content(tmp_path) == []
    start_over(path=str(tmp_path), query="q")
    apply(batch_of(row("insert", 2, "x", "2")), 0)
    assert content(tmp_path) == [(2, "x", "2", "2")]


def test_a_query_has_a_name(tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match="query is ' '; expected a name that no other query"):
        apply_to(path=str(tmp_path), key=["a"], query=" ")


def test_a_driver_does_not_go_on_into_a_table_that_was_begun_anew(
    tmp_path: Path, apply: Apply, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds where the new query has come to the batch after which this one began, too."""
    apply(batch_of(row("insert", 1, "x", "1")), 0)

    def late(*given: Any) -> None:
        monkeypatch.setattr(delta, "merge", merge)
        start_over(path=str(tmp_path), query="q")
        apply(batch_of(row("insert", 7, "x", "7"), row("insert", 8, "x", "8")), 0)
        merge(*given)

    monkeypatch.setattr(delta, "merge", late)
    with pytest.raises(TableBusyError, match="another writer"):
        apply(batch_of(row("update_postimage", 1, "x", "2")), 1)
    assert content(tmp_path) == [(7, "x", "7", "7"), (8, "x", "8", "8")]
