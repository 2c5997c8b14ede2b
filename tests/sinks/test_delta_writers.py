"""Somebody else commits to the Delta table while a batch is merged into it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Field
from deltalake.schema import PrimitiveType

from backfill.errors import StateError, TableBusyError, TableError
from backfill.sinks.applied import AppliedBatch
from backfill.sinks.compacted import CompactedBatch, compacted
from backfill.sinks.delta import TRIES, apply_to, start_over
from backfill.sinks.delta.columns import require_types
from backfill.sinks.delta.merge import merge
from backfill.sinks.delta.record import forgotten, note, noted, record
from backfill.sinks.merge_source import merge_source
from backfill.upstream.delta.failures import translating
from integration.object_store import BUCKET, Request, named_by_environment
from tests.collected import Rows
from tests.sinks.batches import Apply, batch, batch_of, content, row


def optimize_and_vacuum(table: DeltaTable) -> None:
    """Leaves no files of the versions before."""
    table.optimize.compact()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


OTHERS: dict[str, Callable[[DeltaTable], Any]] = {
    "OPTIMIZE": lambda table: table.optimize.compact(),
    "a property": lambda table: table.alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"}),
    "a feature": lambda table: table.alter.set_table_properties({"delta.enableChangeDataFeed": "true"}),
    "a column": lambda table: table.alter.add_columns([Field("x", PrimitiveType("integer"))]),
    "VACUUM": optimize_and_vacuum,
    "a row": lambda table: table.update(updates={"v": "'theirs'"}, predicate="a = 2"),
}

KINDS = ["insert", "delete", "none"]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table with the keys 1 and 2 in a file each, written by the query of `sink`."""
    for number in range(2):
        sink(tmp_path)(batch_of(row("insert", number + 1, "x", "1")), number)
    return tmp_path


def sink(table: Path) -> Callable[[Rows, int], None]:
    return apply_to(path=str(table), key=["a", "b"], query="q")


def meddle(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any], times: int) -> None:
    """Does `act` after a batch has opened the table and before it is merged, in the first `times` merges."""
    left = [act] * times

    def after_it(last: CompactedBatch, names: Sequence[str]) -> pa.Table:
        if left:
            left.pop()()
        return merge_source(last, names)

    monkeypatch.setattr(import_module("backfill.sinks.delta.merge"), "merge_source", after_it)


def test_of_two_drivers_that_apply_the_same_batch_one_fails(tmp_path: Path, apply: Apply) -> None:
    apply(batch_of(row("insert", 1, "x", "1")), 0)
    last = compacted(batch(row("insert", 2, "x", "2")), ["a", "b"], "t")
    first, second = DeltaTable(tmp_path), DeltaTable(tmp_path)
    noted = record("q", AppliedBatch(1, 1, 1, 1), 1)
    merge(first, ["a", "b"], last, noted)
    with pytest.raises(TableBusyError, match=r"another writer .* concurrent"), translating(str(tmp_path)):
        merge(second, ["a", "b"], last, noted)
    assert content(tmp_path) == [(1, "x", "1", "1"), (2, "x", "2", "2")]


@pytest.mark.parametrize("rows", [[row("insert", 2, "x", "1")], [row("delete", 1, "x", "1")], []], ids=KINDS)
def test_a_commit_of_which_no_answer_came_is_no_other_writers(
    monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]]
) -> None:
    """`deltalake` then sends the commit to a remote store again, and is told that the version is there."""
    lost: list[str] = []

    def answer_lost(request: Request) -> bool:
        is_commit = request.kind == "PUT" and request.key.endswith("2.json") and not lost
        if is_commit:
            lost.append(request.key)
        return is_commit

    with named_by_environment(monkeypatch) as store:
        path = f"s3://{BUCKET}/t"
        apply = apply_to(path=path, key=["a", "b"], query="q")
        apply(batch_of(row("insert", 1, "x", "1")), 0)
        store.answer_lost = answer_lost
        apply(batch_of(*rows), 1)
        assert lost
        assert noted(DeltaTable(path), "q")[0] == 1
        assert DeltaTable(path).version() == 2


@pytest.mark.parametrize("act", OTHERS.values(), ids=OTHERS)
def test_a_batch_is_merged_again_after_another_writer(
    table: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[DeltaTable], Any]
) -> None:
    meddle(monkeypatch, lambda: act(DeltaTable(table)), TRIES - 1)
    changes = batch_of(row("update_postimage", 1, "x", "2"), row("update_postimage", 2, "x", "2", ["w"]))
    sink(table)(changes, 2)
    assert [found[:4] for found in content(table)] == [(1, "x", "2", "2"), (2, "x", "2", "1")]
    version = DeltaTable(table).version()
    sink(table)(changes, 2)
    assert DeltaTable(table).version() == version


@pytest.mark.parametrize("rows", [[row("insert", 3, "x", "1")], [row("delete", 3, "x", "1")], []], ids=KINDS)
def test_a_restore_that_was_faster_is_reported_though_the_batch_touches_other_files(
    table: Path, monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]]
) -> None:
    """This holds also where a batch is nothing but its record."""
    left = [1]

    def noted(*given: Any) -> None:
        if left:
            DeltaTable(table).restore(left.pop())
        note(*given)

    monkeypatch.setattr(import_module("backfill.sinks.delta.merge"), "note", noted)
    if rows and rows[0]["_change_type"] == "insert":
        meddle(monkeypatch, lambda: DeltaTable(table).restore(left.pop()), 1)
    with pytest.raises(StateError, match=r"a RESTORE, which is version 3 .* took it back to version 1"):
        sink(table)(batch_of(*rows), 2)


def test_two_queries_may_both_be_about_to_make_their_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = [apply_to(path=str(tmp_path), key=["a", "b"], query="other")]

    def slowly(columns: pa.Schema) -> None:
        require_types(columns)
        if others:
            others.pop()(batch_of(row("insert", 1, "x", "1")), 0)

    monkeypatch.setattr("backfill.sinks.delta.require_types", slowly)
    sink(tmp_path)(batch_of(row("insert", 2, "x", "1")), 0)
    assert content(tmp_path) == [(1, "x", "1", "1"), (2, "x", "1", "1")]


def test_a_writer_that_rests_within_two_minutes_is_waited_for(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meddle(monkeypatch, lambda: OTHERS["a row"](DeltaTable(table)), 3 * TRIES)
    sink(table)(batch_of(row("update_postimage", 1, "x", "2")), 2)
    assert content(table) == [(1, "x", "2", "2"), (2, "x", "theirs", "1")]


def test_a_writer_that_never_rests_is_reported(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backfill.sinks.delta.PATIENCE", 0.0)
    meddle(monkeypatch, lambda: OTHERS["a row"](DeltaTable(table)), TRIES)
    with pytest.raises(TableBusyError, match="another writer changed the Delta table"):
        sink(table)(batch_of(row("update_postimage", 2, "x", "2")), 2)
    sink(table)(batch_of(row("update_postimage", 2, "x", "2")), 2)
    assert content(table) == [(1, "x", "1", "1"), (2, "x", "2", "2")]


def test_a_batch_that_its_query_has_started_over_without_is_not_merged_again(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meddle(monkeypatch, lambda: start_over(path=str(table), query="q"), 1)
    with pytest.raises(TableBusyError, match="another writer"):
        sink(table)(batch_of(row("insert", 3, "x", "2")), 2)
    assert content(table) == []


def test_a_table_is_emptied_after_another_writer(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = [OTHERS["a row"]] * TRIES

    def after_it(*given: Any) -> CommitProperties:
        if left:
            left.pop()(DeltaTable(table))
        return forgotten(*given)

    monkeypatch.setattr("backfill.sinks.delta.forgotten", after_it)
    start_over(path=str(table), query="q")
    assert not left
    assert content(table) == []


def test_a_table_that_is_only_appended_to_is_recognized(table: Path) -> None:
    DeltaTable(table).alter.set_table_properties({"delta.appendOnly": "true"})
    sink(table)(batch_of(row("insert", 3, "x", "1")), 2)
    with pytest.raises(TableError, match=r"can be updated or deleted: .* append-only.*'delta.appendOnly' = 'false'"):
        sink(table)(batch_of(row("delete", 3, "x", "1")), 3)
    with pytest.raises(TableError, match=r"'delta.appendOnly' = 'false'"):
        start_over(path=str(table), query="q")


@pytest.mark.parametrize("feature", ["clustering", "collations", "typeWidening", "vacuumProtocolCheck"])
def test_a_feature_that_cannot_be_written_is_no_other_writer(
    table: Path, caplog: pytest.LogCaptureFixture, feature: str
) -> None:
    write_protocol(table, feature)
    with pytest.raises(TableError, match=f"does not know: the feature {feature}.* DROP FEATURE {feature};"):
        sink(table)(batch_of(row("insert", 3, "x", "1")), 2)
    assert not caplog.messages
    with pytest.raises(TableError, match=f"DROP FEATURE {feature};"):
        start_over(path=str(table), query="q")


def write_protocol(table: Path, feature: str) -> None:
    """Makes a commit, as deltalake does not, that requires this feature of writers and, for some features, readers."""
    version = DeltaTable(table).version() + 1
    features = {"readerFeatures": [feature] if feature in ("typeWidening", "vacuumProtocolCheck") else []}
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "writerFeatures": [feature], **features}
    (table / "_delta_log" / f"{version:020}.json").write_text(json.dumps({"protocol": protocol}))
