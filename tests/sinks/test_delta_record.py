"""A Delta table's record of the batches that it has, and batches that are refused as not coming after them."""

from __future__ import annotations

import os
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from backfill.errors import OptionsError, StateError
from backfill.sinks.delta import apply_to, start_over
from tests.collected import Rows
from tests.sinks.batches import TRUNCATE, Apply, batch_of, content, row


@pytest.mark.parametrize(
    "rows", [batch_of(), batch_of(TRUNCATE), batch_of(row("delete", 9, "x", "1"))], ids=["none", "all", "one"]
)
def test_a_batch_that_changes_nothing_is_noted_as_well(tmp_path: Path, apply: Apply, rows: Rows) -> None:
    apply(rows, 0)
    assert DeltaTable(tmp_path).transaction_version("q") == 0
    apply(batch_of(row("insert", 1, "x", "1")), 1)
    assert len(content(tmp_path)) == 1


def test_a_table_that_was_started_over_takes_no_later_batch(tmp_path: Path, apply: Apply) -> None:
    apply(batch_of(row("insert", 1, "x", "1")), 0)
    start_over(path=str(tmp_path), query="q")
    with pytest.raises(StateError, match="table, which is empty, and now it should apply batch 1"):
        apply(batch_of(row("insert", 2, "x", "1")), 1)
    apply(batch_of(row("insert", 3, "x", "1")), 0)
    assert content(tmp_path) == [(3, "x", "1", "1")]


def test_a_table_is_not_emptied_for_a_query_that_has_not_filled_it(tmp_path: Path) -> None:
    apply_to(path=str(tmp_path), key=["a", "b"], query="q")(batch_of(row("insert", 1, "x", "1")), 0)
    with pytest.raises(StateError, match=r"no query 'Q' has applied a batch to the table .*; nothing was removed"):
        start_over(path=str(tmp_path), query="Q")
    for wrong in (" ", "q/rows"):
        with pytest.raises(OptionsError, match="query is '"):
            start_over(path=str(tmp_path), query=wrong)
        with pytest.raises(OptionsError, match="query is '"):
            apply_to(path=str(tmp_path), key=["a", "b"], query=wrong)
    assert len(content(tmp_path)) == 1
    start_over(path=str(tmp_path), query="q")
    start_over(path=str(tmp_path), query="Q")
    assert content(tmp_path) == []


def test_a_table_that_has_the_rows_takes_the_batches_after_them(tmp_path: Path) -> None:
    """A table copied from another begins after the batches whose rows it has."""
    apply_to(path=str(tmp_path), key=["a", "b"], query="q")(batch_of(row("insert", 1, "x", "1")), 0)
    apply_to(path=str(tmp_path), key=["a", "b"], query="second")(batch_of(row("insert", 2, "x", "1")), 1)
    assert len(content(tmp_path)) == 2


def test_a_table_that_was_emptied_is_filled_again_only_where_it_was_started_over(tmp_path: Path, apply: Apply) -> None:
    """If nothing was written meanwhile, the first batch of a new checkpoint is the same as that of the old one."""
    first = batch_of(row("insert", 1, "x", "1"))
    apply(first, 0)
    DeltaTable(tmp_path).delete()
    with pytest.raises(StateError, match="its table was emptied since"):
        apply(first, 0)
    start_over(path=str(tmp_path), query="q")
    apply(first, 0)
    assert content(tmp_path) == [(1, "x", "1", "1")]


def test_a_first_batch_that_leaves_no_rows_may_come_again(tmp_path: Path, apply: Apply) -> None:
    """A table without rows after such a batch was not emptied by somebody else."""
    for _ in range(2):
        apply(batch_of(row("insert", 1, "x", "1"), row("delete", 1, "x", "1")), 0)
    assert content(tmp_path) == []


def test_a_table_that_was_put_back_to_an_earlier_state_is_reported(tmp_path: Path) -> None:
    table, earlier = tmp_path / "copy", tmp_path / "earlier"
    apply = apply_to(path=str(table), key=["a", "b"], query="q")
    batches = [batch_of(row("insert", number, "x", "1")) for number in range(4)]
    for number in range(3):
        apply(batches[number], number)
        if number == 0:
            shutil.copytree(table, earlier)
    shutil.rmtree(table)
    shutil.copytree(earlier, table)
    with pytest.raises(StateError, match=r"has applied batch 0 .* apply batch 3: .* restored to an earlier state"):
        apply(batches[3], 3)
    for number in range(1, 4):
        apply(batches[number], number)
    assert len(content(table)) == 4


def test_batches_without_rows_that_were_left_out_are_reported_as_such(tmp_path: Path, apply: Apply) -> None:
    apply(batch_of(row("insert", 1, "x", "1")), 0)
    later = batch_of(row("insert", 2, "x", "1"))
    with pytest.raises(StateError, match=r"for number in range\(1, 3\) if batch_id == 3 else \(\): apply_batch\(batch"):
        apply(later, 3)
    for number in range(1, 3):
        apply(batch_of(), number)
    apply(later, 3)
    assert len(content(tmp_path)) == 2


def test_a_table_that_was_restored_to_before_the_last_batch_takes_no_other(tmp_path: Path, apply: Apply) -> None:
    """A RESTORE leaves application transactions as they are."""
    batches = [batch_of(row("insert", number, "x", "1")) for number in range(4)]
    for number in range(3):
        apply(batches[number], number)
    DeltaTable(tmp_path).optimize.compact()
    DeltaTable(tmp_path).restore(2)
    lost = r"RESTORE, which is version 5 of .* back to version 2, .* 'q' .* in version 3\. .* VERSION AS OF 4; or"
    for again in (batches[2], 2), (batches[3], 3):
        with pytest.raises(StateError, match=lost):
            apply(*again)
    write_deltalake(tmp_path, DeltaTable(tmp_path).to_pyarrow_table().slice(0, 0), mode="append")
    with pytest.raises(StateError, match=lost):
        apply(batches[3], 3)
    DeltaTable(tmp_path).restore(4)
    apply(batches[3], 3)
    assert len(content(tmp_path)) == 4


@pytest.mark.parametrize(
    ("to_time", "restored"), [(False, "version 2, so that it lacks"), (True, "a time, so that it may lack")]
)
def test_a_restore_is_reported_though_the_log_before_it_was_cleaned_up(
    tmp_path: Path, apply: Apply, restored: str, *, to_time: bool
) -> None:
    batches = [batch_of(row("insert", number, "x", "1")) for number in range(4)]
    for number in range(3):
        apply(batches[number], number)
    DeltaTable(tmp_path).optimize.compact()
    now = time.time()
    for version in range(5):
        os.utime(tmp_path / f"_delta_log/{version:020}.json", (now, now - 100 * (5 - version)))
    DeltaTable(tmp_path).restore(datetime.fromtimestamp(now - 250, UTC) if to_time else 2)
    clean_up_before(tmp_path, 5)
    lost = rf"RESTORE, which is version 5 of .* back to {restored} .* after version 2\. .* cleaned up: call start_over"
    with pytest.raises(StateError, match=lost):
        apply(batches[3], 3)
    start_over(path=str(tmp_path), query="q")
    apply(batches[3], 0)
    assert content(tmp_path) == [(3, "x", "1", "1")]


@pytest.mark.parametrize("since", [1, 3])
def test_a_log_that_was_cleaned_up_without_a_restore_is_not_reported(tmp_path: Path, apply: Apply, since: int) -> None:
    apply(batch_of(row("insert", 1, "x", "1")), 0)
    for _ in range(since):
        write_deltalake(tmp_path, DeltaTable(tmp_path).to_pyarrow_table().slice(0, 0), mode="append")
    clean_up_before(tmp_path, since + 1)
    apply(batch_of(row("insert", 2, "x", "1")), 1)
    assert len(content(tmp_path)) == 2


def test_a_table_that_was_started_over_and_restored_takes_no_batch(tmp_path: Path, apply: Apply) -> None:
    """The rows from before would stay beside those of the new stream."""
    apply(batch_of(row("insert", 1, "x", "1")), 0)
    start_over(path=str(tmp_path), query="q")
    DeltaTable(tmp_path).restore(1)
    with pytest.raises(StateError, match=r"took it back to version 1, .* in version 2\. .* TO VERSION AS OF 2; or"):
        apply(batch_of(row("insert", 2, "x", "1")), 0)
    DeltaTable(tmp_path).restore(2)
    apply(batch_of(row("insert", 2, "x", "1")), 0)
    assert len(content(tmp_path)) == 1


def test_a_table_may_be_restored_to_what_it_was_after_the_last_batch(tmp_path: Path, apply: Apply) -> None:
    """Whoever else wrote to it may take that back, also in several steps."""
    for number in range(2):
        apply(batch_of(row("insert", number, "x", "1")), number)
    DeltaTable(tmp_path).delete()
    DeltaTable(tmp_path).restore(1)
    DeltaTable(tmp_path).restore(2)
    apply(batch_of(row("insert", 2, "x", "1")), 2)
    assert len(content(tmp_path)) == 3


def test_a_restore_to_a_time_is_undone_before_the_next_batch(tmp_path: Path, apply: Apply) -> None:
    apply(batch_of(row("insert", 0, "x", "1")), 0)
    DeltaTable(tmp_path).delete()
    now = time.time()
    for version, ago in enumerate([3000, 2000, 0]):  # The time of a commit is that of its file.
        os.utime(tmp_path / f"_delta_log/{version:020}.json", (now - ago, now - ago))
    DeltaTable(tmp_path).restore(datetime.fromtimestamp(now - 1000, UTC))
    with pytest.raises(StateError, match=r"took it back to a time, .* TO VERSION AS OF 2"):
        apply(batch_of(row("insert", 1, "x", "1")), 1)
    DeltaTable(tmp_path).restore(2)
    apply(batch_of(row("insert", 1, "x", "1")), 1)
    assert len(content(tmp_path)) == 1


def test_a_table_that_was_made_anew_in_its_place_takes_no_later_batch(tmp_path: Path, apply: Apply) -> None:
    """The record of batches stays, as with a RESTORE."""
    for number in range(2):
        apply(batch_of(row("insert", number, "x", "1")), number)
    replace_table(tmp_path)
    write_deltalake(tmp_path, DeltaTable(tmp_path).to_pyarrow_table(), mode="append")
    for again in 1, 2:
        with pytest.raises(StateError, match=r"was replaced in version 3, .* another name; .* TO VERSION AS OF 2, or"):
            apply(batch_of(row("insert", again, "x", "1")), again)
    DeltaTable(tmp_path).restore(2)
    apply(batch_of(row("insert", 2, "x", "1")), 2)
    assert len(content(tmp_path)) == 3
    replace_table(tmp_path)
    apply_to(path=str(tmp_path), key=["a", "b"], query="other")(batch_of(row("insert", 3, "x", "1")), 0)
    assert content(tmp_path) == [(3, "x", "1", "1")]


def test_a_table_that_was_made_anew_after_it_was_started_over_is_filled(tmp_path: Path, apply: Apply) -> None:
    apply(batch_of(row("insert", 1, "x", "1")), 0)
    start_over(path=str(tmp_path), query="q")
    replace_table(tmp_path)
    apply(batch_of(row("insert", 2, "x", "1")), 0)
    assert content(tmp_path) == [(2, "x", "1", "1")]


def replace_table(path: Path) -> None:
    DeltaTable.create(path, DeltaTable(path).schema(), mode="overwrite")


def test_the_record_stays_where_that_of_others_expires(tmp_path: Path, apply: Apply) -> None:
    apply(batch_of(row("insert", 1, "x", "1")), 0)
    DeltaTable(tmp_path).alter.set_table_properties({"delta.setTransactionRetentionDuration": "interval 1 day"})
    apply(batch_of(row("update_postimage", 1, "x", "2")), 1)
    write_checkpoint_of_spark(tmp_path)
    with pytest.raises(StateError, match="has applied batch 1, and now it should apply batch 0 with other rows"):
        apply(batch_of(row("insert", 1, "x", "1")), 0)
    assert content(tmp_path) == [(1, "x", "2", "2")]


def clean_up_before(table: Path, version: int) -> None:
    """Removes commits, as writers do with those older than delta.logRetentionDuration."""
    DeltaTable(table).create_checkpoint()
    for old in range(version):
        (table / f"_delta_log/{old:020}.json").unlink()


def write_checkpoint_of_spark(table: Path) -> None:
    """Writes a checkpoint without application transactions that lack a time, as Spark does where they may expire."""
    DeltaTable(table).create_checkpoint()
    (file,) = (table / "_delta_log").glob("*.checkpoint.parquet")
    rows = pq.read_table(file)
    transaction, written = (pc.struct_field(rows["txn"], name) for name in ("appId", "lastUpdated"))
    pq.write_table(rows.filter(pc.or_(pc.is_null(transaction), pc.is_valid(written))), file)
