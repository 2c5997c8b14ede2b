"""What has gone wrong elsewhere with streams over Delta tables, and what a table may go through meanwhile."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from backfill.command.requests import ask_again
from backfill.errors import (
    DatabaseSetupError,
    DataLossError,
    FileGoneError,
    StateError,
    TableError,
)
from backfill.options import parse
from backfill.upstream.delta import DeltaUpstream
from backfill.upstream.delta.files.log import Log, Stamp, commit_file
from tests.delta.laboratory import FEED, clean_up, vacuum
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


# -- commits that change no row ------------------------------------------------------------------------------------


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


# -- where the feed begins and ends --------------------------------------------------------------------------------


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
    with pytest.raises(DataLossError, match=r"version 2 of .* has switched the change data feed off"):
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
    """The commit after it comes before the rows are read, and the one before it when they are planned."""
    DeltaTable(table).update(updates={"v": "'before'"}, predicate="id = 1")
    run = DeltaRun(tmp_path, table)
    assert run.plan()
    DeltaTable(table).update(updates={"v": "'after'"}, predicate="id = 1")
    run.commit(run.read())
    assert run.fold.rows[1,] == {"id": 1, "v": "before"}
    run.catch_up()
    assert run.fold.counts == {"insert": 10, "update_preimage": 1, "update_postimage": 1}


# -- what is not kept for ever -------------------------------------------------------------------------------------


def test_a_log_that_was_cleaned_up_under_a_lagging_stream_is_told(
    tmp_path: Path, table: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = all_read(tmp_path, table)
    DeltaTable(table).delete("id = 1")
    DeltaTable(table).delete("id = 2")
    clean_up(table)
    lost = r"no longer has version 2: .*logRetentionDuration"
    with pytest.raises(DataLossError, match=lost):
        run.plan()
    run.restart()
    with pytest.raises(DataLossError, match=lost):
        run.plan()
    run.restart(failOnDataLoss="false")
    with caplog.at_level(logging.ERROR):
        assert run.plan()
        run.fold.apply(run.read())
    assert "no longer has version 3" in caplog.text


def test_a_commit_that_goes_while_it_is_looked_at_is_not_said_to_be_vacuumed(
    tmp_path: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = all_read(tmp_path, table)
    begin = run.barrier().epoch
    DeltaTable(table).delete("id = 1")
    run.catch_up()
    end, stamp = run.version, Log.stamp

    def just_there(log: Log, version: int) -> Stamp | None:
        found = stamp(log, version)
        if version == end:
            (table / commit_file(end)).unlink()
        return found

    upstream = DeltaUpstream(parse({"path": str(table), "keyColumns": "id"}))
    upstream.schema()
    monkeypatch.setattr(Log, "stamp", just_there)
    with pytest.raises(FileGoneError, match=f"{end}.json"):
        list(upstream.changes(begin, run.barrier().epoch))


def test_files_that_vacuum_took_away_before_their_changes_were_read_are_told(
    tmp_path: Path, table: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = all_read(tmp_path, table)
    write_deltalake(table, rows((1, "v1")), mode="overwrite")
    write_deltalake(table, rows((50, "new")), mode="append")
    vacuum(table)
    assert run.plan()
    with pytest.raises(DataLossError, match=r"files of version 2 to \d of .* are gone .*VACUUM has removed them"):
        run.read()
    run.restart(failOnDataLoss="false")
    with caplog.at_level(logging.ERROR):
        assert [row["id"] for row in run.read()] == [50]
    assert "with changes of version 2 is gone" in caplog.text


def test_files_that_vacuum_took_away_before_they_were_read_are_told(tmp_path: Path, table: Path) -> None:
    run = half_read(tmp_path, table)
    assert run.plan(5)
    write_deltalake(table, rows((1, "v1")), mode="overwrite")
    vacuum(table)
    for _ in range(2):
        with pytest.raises(DataLossError, match=r"files of version 1 of .* are gone"):
            run.read()
        run.restart()


def test_files_that_are_missing_before_anything_is_read_are_told(tmp_path: Path, table: Path) -> None:
    for file in table.glob("*.parquet"):
        file.unlink()
    with pytest.raises(DataLossError, match=r"files of version 1 of .* are gone .*repair\(\) of the package deltalake"):
        DeltaRun(tmp_path, table).plan()
    DeltaTable(table).repair()
    run = DeltaRun(tmp_path, table)
    run.catch_up()
    assert run.fold.rows == {}


# -- batches that are run again ------------------------------------------------------------------------------------


def test_a_batch_that_is_run_again_reads_the_version_it_was_planned_at(tmp_path: Path, table: Path) -> None:
    run = half_read(tmp_path, table)
    assert run.plan(5)
    run.restart()
    write_deltalake(table, rows((1, "v1")), mode="overwrite")
    run.batch(5)
    assert run.fold.counts == {"insert": 10}, "each row as it was in the version planned"
    run.catch_up()
    assert all(not run.barrier(number).ahead for number in range(1, run.committed + 1))


def test_rows_that_are_taken_again_are_read_after_a_crash_at_the_version_planned(tmp_path: Path, table: Path) -> None:
    run = all_read(tmp_path, table)
    ask_again(str(tmp_path / "state"), None, None)
    assert run.plan()
    run.restart()
    DeltaTable(table).delete("id < 5")
    assert sorted(row["id"] for row in run.read()) == list(range(10))


# -- another table, or an older one --------------------------------------------------------------------------------


def test_another_table_at_the_same_path_is_told(tmp_path: Path, table: Path) -> None:
    run = all_read(tmp_path, table)
    assert not run.plan()
    shutil.rmtree(table)
    created(table)
    with pytest.raises(DataLossError, match="was deleted and made again: what was read is of the table with id"):
        run.plan()
    run.restart()
    with pytest.raises(StateError, match="was dropped and made again since the stream began"):
        run.plan()
    shutil.rmtree(table)
    run.restart()
    with pytest.raises(TableError, match=r"there is no Delta table at .*; check the option path"):
        run.plan()


def test_changes_of_another_table_than_was_planned_are_not_read(table: Path) -> None:
    upstream = DeltaUpstream(parse({"path": str(table), "keyColumns": "id"}))
    changes = upstream.span("earliest", "latest")
    shutil.rmtree(table)
    created(table)
    with pytest.raises(DataLossError, match=r"made again: .* load\(\) its changes anew") as refused:
        list(changes.read())
    assert "checkpointLocation" not in str(refused.value)


def test_an_older_copy_of_the_table_is_told(tmp_path: Path, table: Path) -> None:
    shutil.copytree(table, tmp_path / "copy")
    run = all_read(tmp_path, table)
    DeltaTable(table).delete("id = 1")
    run.catch_up()
    shutil.rmtree(table)
    (tmp_path / "copy").rename(table)
    run.restart()
    with pytest.raises(DataLossError, match=r"has read version 2 .* and its log ends with version 1"):
        run.plan()
