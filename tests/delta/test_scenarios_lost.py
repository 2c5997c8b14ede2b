"""Errors for what is kept for a time only and is gone, and for another or an older table in the table's place."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from backfill.errors import DataLossError, StateError, TableError
from backfill.options import parse
from backfill.upstream import TableSize
from backfill.upstream.delta import DeltaUpstream
from backfill.upstream.delta.changes.span import DeltaChangeReader
from backfill.upstream.delta.files.commits import Commit
from backfill.upstream.delta.files.log import FileStamp, Log, commit_file
from backfill.upstream.delta.tables import opening
from backfill.vnode import WHOLE_TABLE
from tests.delta.laboratory import clean_up, vacuum
from tests.delta.stream import DeltaRun
from tests.delta.tables import all_read, created, half_read, rows


def test_a_log_that_was_cleaned_up_under_a_lagging_stream_is_reported(
    tmp_path: Path, table: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = all_read(tmp_path, table)
    DeltaTable(table).delete("id = 1")
    DeltaTable(table).delete("id = 2")
    clean_up(table)
    lost = r"no longer has version 2, because .*logRetentionDuration"
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


def test_behind_a_version_that_was_cleaned_up_a_stream_is_not_reported_as_up_to_date(
    tmp_path: Path, table: Path
) -> None:
    run = all_read(tmp_path, table)
    run.restart(failOnDataLoss="false")
    for key in (1, 2, 3):
        DeltaTable(table).delete(f"id = {key}")
    assert run.batch(1)
    clean_up(table)
    found = run.stream().report()
    assert (found["lag_versions"], found.get("lag_seconds"), found.get("complete_until")) == (2, None, None)


def test_a_commit_that_goes_while_it_is_read_is_reported_as_gone_from_the_log(
    tmp_path: Path, table: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = all_read(tmp_path, table)
    begin = run.barrier().epoch
    DeltaTable(table).delete("id = 1")
    run.catch_up()
    end, stamp = run.version, Log.stamp

    def just_there(log: Log, version: int) -> FileStamp | None:
        found = stamp(log, version)
        if version == end:
            (table / commit_file(end)).unlink(missing_ok=True)
        return found

    options = {"path": str(table), "keyColumns": "id"}
    strict = DeltaUpstream(parse(options))
    strict.schema()
    content = (table / commit_file(end)).read_bytes()
    monkeypatch.setattr(Log, "stamp", just_there)
    with pytest.raises(DataLossError, match=f"no longer has version {end}, because .* failOnDataLoss=false"):
        list(strict.changes(begin, run.barrier().epoch))
    (table / commit_file(end)).write_bytes(content)
    forgiving = DeltaUpstream(parse({**options, "failOnDataLoss": "false"}))
    forgiving.schema()
    with caplog.at_level(logging.ERROR):
        assert not list(forgiving.changes(begin, run.barrier().epoch))
    assert f"no longer has version {end}" in caplog.text


@pytest.mark.parametrize("file", ["File not found: /t/1.json", "Object at location /t/1.parquet not found: "])
def test_a_table_whose_log_is_cleaned_up_while_it_is_opened_is_opened_again(
    tmp_path: Path, table: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """A file may be listed before a checkpoint is written, removed after that, and then be read."""
    listed = 0

    def opened(uri: str, version: int | None = None) -> DeltaTable:
        nonlocal listed
        listed += 1
        if listed % 2:
            raise DeltaError(f"Kernel error: {file}")
        return DeltaTable(uri, version=version)

    monkeypatch.setattr(opening, "DeltaTable", opened)
    run = all_read(tmp_path, table)
    DeltaTable(table).delete("id = 1")
    run.catch_up()
    run.restart()
    assert not run.plan()
    assert len(run.fold.rows) == 9


def test_files_that_vacuum_took_away_before_their_changes_were_read_are_reported(
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


def test_the_oldest_changes_are_those_whose_files_vacuum_has_left(table: Path) -> None:
    def span(starting: str) -> DeltaChangeReader:
        return DeltaUpstream(parse({"path": str(table), "keyColumns": "id"})).span(starting, "latest")

    write_deltalake(table, rows((20, "new")), mode="append")
    DeltaTable(table).optimize.compact()
    vacuum(table)
    end = DeltaTable(table).version()
    with pytest.raises(DataLossError, match=r"VACUUM has removed them .* with startingPosition=earliest"):
        list(span("-1").read())
    assert (span("earliest").after, list(span("earliest").read())) == ("2", [])
    write_deltalake(table, rows((21, "new")), mode="append")
    assert [batch["version"].to_pylist() for batch in span("earliest").read()] == [[end + 1]]


def test_files_that_vacuum_took_away_before_they_were_read_are_reported(tmp_path: Path, table: Path) -> None:
    run = half_read(tmp_path, table)
    assert run.plan(5)
    write_deltalake(table, rows((1, "v1")), mode="overwrite")
    vacuum(table)
    for _ in range(2):
        with pytest.raises(DataLossError, match=r"files of version 1 of .* are gone"):
            run.read()
        run.restart()


@pytest.mark.parametrize("take_away", [partial(clean_up, keep=1), vacuum], ids=["log", "files"])
def test_a_version_that_is_taken_away_while_a_batch_is_planned_at_it_gives_way_to_the_one_of_now(
    tmp_path: Path, table: Path, monkeypatch: pytest.MonkeyPatch, take_away: Callable[[Path], None]
) -> None:
    write_deltalake(table, rows((10, "v10")), mode="append")
    run, size = half_read(tmp_path, table), DeltaUpstream.size

    def late(upstream: DeltaUpstream) -> TableSize:
        if DeltaTable(table).version() == run.version:
            DeltaTable(table).optimize.compact()
            take_away(table)
        return size(upstream)

    monkeypatch.setattr(DeltaUpstream, "size", late)
    assert run.plan(5)
    run.commit(run.read())
    assert run.version == DeltaTable(table).version()
    run.catch_up()
    assert len(run.fold.rows) == 11


def test_files_that_are_missing_before_anything_is_read_are_reported(tmp_path: Path, table: Path) -> None:
    for file in table.glob("*.parquet"):
        file.unlink()
    with pytest.raises(DataLossError, match=r"files of version 1 of .* are gone .*repair\(\) of the package deltalake"):
        DeltaRun(tmp_path, table).plan()
    DeltaTable(table).repair()
    run = DeltaRun(tmp_path, table)
    run.catch_up()
    assert run.fold.rows == {}


def test_whoever_reads_the_table_alone_is_not_told_to_start_a_stream_anew(table: Path) -> None:
    upstream = DeltaUpstream(parse({"path": str(table), "keyColumns": "id"}))
    reading = upstream.reader().scan([WHOLE_TABLE])
    for file in table.glob("*.parquet"):
        file.unlink()
    with pytest.raises(DataLossError, match=r"files of version 1 of .* are gone .*Start the query again") as lost:
        list(reading)
    assert "checkpointLocation" not in str(lost.value), "which only a stream has"


def test_another_table_at_the_same_path_is_reported(tmp_path: Path, table: Path) -> None:
    run = all_read(tmp_path, table)
    assert not run.plan()
    shutil.rmtree(table)
    created(table)
    with pytest.raises(DataLossError, match="was deleted and made again: the table that was read has id"):
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
    with pytest.raises(DataLossError, match=r"made again: .* load\(\) its changes again") as refused:
        list(changes.read())
    assert "checkpointLocation" not in str(refused.value)


@pytest.mark.parametrize("begins", ["planned", "logged", "read alone"])
def test_commits_of_a_table_that_comes_to_the_path_while_they_are_read_are_not_taken(
    tmp_path: Path, table: Path, monkeypatch: pytest.MonkeyPatch, begins: str
) -> None:
    run, commit = all_read(tmp_path, table), Log.commit
    other = created(tmp_path / "other")
    for folder, key in ((table, 20), (other, 30)):
        write_deltalake(folder, rows((key, "v")), mode="append")
    end = DeltaTable(table).version()
    if begins == "logged":
        assert run.plan()
        run.restart()
    changes = DeltaUpstream(parse({"path": str(table), "keyColumns": "id"})).span(str(end - 1), str(end))

    def exchanged(log: Log, version: int) -> Commit | None:
        if version == end and other.exists():
            table.rename(tmp_path / "before")
            other.rename(table)
        return commit(log, version)

    monkeypatch.setattr(Log, "commit", exchanged)
    reads: dict[str, Callable[[], object]] = {"planned": run.plan, "logged": run.read}
    read = reads.get(begins, lambda: list(changes.read()))
    with pytest.raises(DataLossError, match="was deleted and made again"):
        read()
    assert not other.exists()


def test_an_older_copy_of_the_table_is_reported(tmp_path: Path, table: Path) -> None:
    shutil.copytree(table, tmp_path / "copy")
    run = all_read(tmp_path, table)
    DeltaTable(table).delete("id = 1")
    run.catch_up()
    shutil.rmtree(table)
    (tmp_path / "copy").rename(table)
    run.restart()
    with pytest.raises(DataLossError, match=r"has read version 2 .* and its log ends with version 1"):
        run.plan()


def test_a_batch_that_is_run_again_is_not_read_of_a_copy_that_went_another_way(tmp_path: Path, table: Path) -> None:
    run = all_read(tmp_path, table)
    shutil.copytree(table, tmp_path / "copy")
    for folder, text in ((table, "here"), (tmp_path / "copy", "there")):
        write_deltalake(folder, rows((10, text)), mode="append")
        time.sleep(0.002)  # Keep the two commits in different milliseconds.
    assert run.plan()
    shutil.rmtree(table)
    (tmp_path / "copy").rename(table)
    run.restart()
    with pytest.raises(DataLossError, match="an older copy of the table was restored and written to since"):
        run.read()
