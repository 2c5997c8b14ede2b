"""What a table may go through under a stream, and where its change data feed begins and ends."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from backfill.errors import DatabaseSetupError, DataLossError
from backfill.options import parse
from backfill.upstream.delta import DeltaUpstream
from tests.delta.laboratory import FEED, clean_up
from tests.delta.stream import DeltaRun
from tests.delta.tables import all_read, created, half_read, merged, rows


def test_columns_may_have_the_names_of_ours_and_begin_with_a_dot(tmp_path: Path) -> None:
    names = (".id", "id", "_version", "_time", "_there", ".a.b")
    schema = pa.schema([(name, pa.int64()) for name in names])

    def made(*keys: int) -> pa.Table:
        return pa.Table.from_arrays([pa.array([key * place for key in keys]) for place in range(1, 7)], schema=schema)

    table = tmp_path / "table"
    DeltaTable.create(table, schema=schema, configuration=FEED)
    write_deltalake(table, made(1, 2, 3, 4, 5, 6), mode="append")
    run = DeltaRun(tmp_path, table, key=(".id", "_version"), options={"vnodeCount": "3", "numPartitions": "1"})
    run.batch(2)
    assert not run.backfilled
    write_deltalake(table, made(7, 8, 9), mode="append")
    run.catch_up()
    DeltaTable(table).update(updates={"_there": "0", "`.a.b`": "1"}, predicate="id > 4")
    DeltaTable(table).delete("id = 6")
    run.catch_up()
    assert run.fold.counts == {"insert": 9, "update_preimage": 7, "update_postimage": 7, "delete": 1}


@pytest.mark.parametrize("begun", [half_read, all_read], ids=["in mid-backfill", "after it"])
def test_what_only_rewrites_files_gives_no_rows(
    tmp_path: Path, table: Path, begun: Callable[[Path, Path], DeltaRun]
) -> None:
    """OPTIMIZE, Z-ORDER, an update to the same values, a MERGE of what is there, an overwrite with the same rows."""
    write_deltalake(table, rows((20, "more")), mode="append")
    run = begun(tmp_path, table)
    inserted = run.fold.counts.get("insert", 0)
    before = DeltaTable(table).version()
    DeltaTable(table).optimize.compact()
    DeltaTable(table).optimize.z_order(["id"])
    DeltaTable(table).update(updates={"v": "v"})
    merged(table, rows((1, "v1"), (2, "v2"))).when_matched_update_all().execute()
    merged(table, rows((99, "none"))).when_matched_update_all().execute()
    write_deltalake(table, pa.table(DeltaTable(table).scan()), mode="overwrite")
    assert DeltaTable(table).version() >= before + 5
    run.catch_up()
    assert run.fold.counts == {"insert": 11} if inserted else not run.fold.counts


def test_overwriting_the_table_gives_only_what_has_changed(tmp_path: Path, table: Path) -> None:
    run = all_read(tmp_path, table)
    write_deltalake(table, rows((1, "v1"), (2, "new"), (30, "more")), mode="overwrite")
    run.catch_up()
    assert run.fold.counts == {"delete": 8, "update_preimage": 1, "update_postimage": 1, "insert": 1}


def test_restoring_a_version_gives_what_it_changes(tmp_path: Path, table: Path) -> None:
    run = all_read(tmp_path, table)
    DeltaTable(table).delete("id < 3")
    DeltaTable(table).update(updates={"v": "'x'"}, predicate="id = 5")
    run.catch_up()
    run.fold.counts.clear()
    DeltaTable(table).restore(1)
    run.catch_up()
    assert run.fold.counts == {"insert": 3, "update_preimage": 1, "update_postimage": 1}


def test_a_table_without_a_feed_is_refused_with_what_enables_it_and_begins_with_the_rows_from_before(
    tmp_path: Path,
) -> None:
    table = created(tmp_path / "table", {})
    run = DeltaRun(tmp_path, table)
    with pytest.raises(DatabaseSetupError, match=r"SET TBLPROPERTIES \(delta.enableChangeDataFeed = true\)"):
        run.plan()
    DeltaTable(table).alter.set_table_properties(FEED)
    run.catch_up()
    assert run.fold.counts == {"insert": 10}
    DeltaTable(table).delete("id = 1")
    run.catch_up()
    assert run.fold.counts == {"insert": 10, "delete": 1}


def test_a_feed_that_was_off_for_a_while_has_lost_changes(
    tmp_path: Path, table: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = all_read(tmp_path, table)
    DeltaTable(table).alter.set_table_properties({**FEED, "delta.enableChangeDataFeed": "false"})
    DeltaTable(table).delete("id = 1")
    DeltaTable(table).alter.set_table_properties(FEED)
    with pytest.raises(DataLossError, match=r"version 2 of .* switched the change data feed off"):
        run.plan()
    run.restart(failOnDataLoss="false")
    with caplog.at_level(logging.ERROR):
        run.catch_up()
    assert "going on although changes were lost" in caplog.text


def test_the_oldest_changes_are_those_since_the_feed_was_switched_on_and_the_log_was_cleaned_up(
    table: Path,
) -> None:
    def earliest() -> str:
        upstream = DeltaUpstream(parse({"path": str(table), "keyColumns": "id"}))
        found = upstream.span("earliest", "latest")
        assert found.upto == str(DeltaTable(table).version())
        assert sum(batch.num_rows for batch in found.read()) == 10 * (found.after == "-1") + 1
        return found.after

    DeltaTable(table).delete("id = 1")
    assert earliest() == "-1"
    DeltaTable(table).alter.set_table_properties({**FEED, "delta.enableChangeDataFeed": "false"})
    DeltaTable(table).delete("id = 2")
    DeltaTable(table).alter.set_table_properties(FEED)
    DeltaTable(table).delete("id = 3")
    assert earliest() == "5"
    with pytest.raises(DataLossError, match="was off at version 4"):
        DeltaUpstream(parse({"path": str(table), "keyColumns": "id"})).span("4", "latest")
    clean_up(table, keep=1)
    DeltaTable(table).delete("id = 4")
    assert earliest() == "6"


def test_the_first_change_is_that_of_the_version_after_the_snapshot(tmp_path: Path, table: Path) -> None:
    """One commit comes before the batch is planned, and one after that, before its rows are read."""
    DeltaTable(table).update(updates={"v": "'before'"}, predicate="id = 1")
    run = DeltaRun(tmp_path, table)
    assert run.plan()
    DeltaTable(table).update(updates={"v": "'after'"}, predicate="id = 1")
    run.commit(run.read())
    assert run.fold.rows[1,] == {"id": 1, "v": "before"}
    run.catch_up()
    assert run.fold.counts == {"insert": 10, "update_preimage": 1, "update_postimage": 1}
