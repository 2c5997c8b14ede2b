"""The command `backfill` for streams over a Delta table."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from backfill.__main__ import main
from tests.delta import vectors
from tests.delta.laboratory import FEED
from tests.delta.stream import DeltaRun


@pytest.fixture
def table(tmp_path: Path) -> Path:
    write_deltalake(tmp_path / "table", pa.table({"id": range(10), "n": [None, *range(9)]}))
    return tmp_path / "table"


def output_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = main(arguments)
    return status, "".join(capsys.readouterr())


def test_the_doctor_says_what_would_refuse_a_stream(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    look = ("doctor", "--path", str(table), "--option")
    status, text = output_of(capsys, *look, "keyColumns=n")
    assert status == 1
    assert text.startswith("refused: the key column n is null in some rows")
    assert "(delta.enableChangeDataFeed = true);" in text
    status, text = output_of(capsys, *look, "keyColumns=nope")
    assert (status, "has no column 'nope'" in text) == (1, True)
    status, text = output_of(capsys, *look, "keyColumns=id", "--option", "snapshotFilter=random() < 0.5")
    assert (status, "snapshotFilter uses random" in text) == (1, True)
    DeltaTable(table).alter.set_table_properties({**FEED, "delta.logRetentionDuration": "interval 5 days"})
    status, text = output_of(capsys, *look, "keyColumns=id")
    assert status == 0
    assert text.startswith(
        "note: delta.logRetentionDuration is 5 days and delta.deletedFileRetentionDuration is 1 week"
    )
    assert text.endswith(f"{table}: a stream would begin\n")
    other = table.parent / "other"
    write_deltalake(other, pa.table({"id": [1], "_sequence": [2]}), configuration=FEED)
    look_there = ("doctor", "--path", str(other), "--option", "keyColumns=id")
    status, text = output_of(capsys, *look_there)
    assert status == 1
    assert text.startswith(f"refused: column _sequence of {other} has the name of a metadata column")
    alone = ("--option", "startupMode=snapshot", "--option", "metadataColumns=none")
    assert output_of(capsys, *look_there, *alone)[0] == 0
    assert output_of(capsys, "doctor", "--path", "/nowhere", "--option", "keyColumns=id")[0] == 1


def test_the_doctor_takes_no_structs_field_for_a_column_with_a_dot_in_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    null = pa.array([{"b": None}], pa.struct([pa.field("b", pa.int64())]))
    write_deltalake(tmp_path, pa.table({"a.b": [1], "a": null}), configuration=FEED)
    status, text = output_of(capsys, "doctor", "--path", str(tmp_path), "--option", 'keyColumns="a.b"')
    assert (status, text.splitlines()[-1]) == (0, f"{tmp_path}: a stream would begin")


def test_the_doctor_does_not_know_which_nulls_are_deleted_by_vectors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "table"
    rows = pa.table({"id": pa.array([1, None], pa.int64())})
    write_deltalake(table, rows, configuration={**FEED, **vectors.PROPERTIES})
    vectors.delete_rows(table, [1])
    status, text = output_of(capsys, "doctor", "--path", str(table), "--option", "keyColumns=id")
    assert (status, text.splitlines()[-1]) == (0, f"{table}: a stream would begin")
    assert "note: the key column id is null in some rows of the table's files" in text
    run = DeltaRun(tmp_path, table)
    run.catch_up()
    assert run.fold.counts == {"insert": 1}


def test_the_doctor_finds_nulls_of_a_column_that_files_have_under_another_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = pa.table({"id": pa.array([1, None], pa.int64())})
    DeltaTable.create(tmp_path, schema=rows.schema, configuration={"delta.columnMapping.mode": "name"})
    write_deltalake(tmp_path, rows, mode="append")
    look = ("doctor", "--path", str(tmp_path), "--option", "startupMode=snapshot", "--option")
    assert output_of(capsys, *look, "keyColumns=id")[1].startswith("refused: the key column id is null in some rows")
    assert "has no column 'nope'" in output_of(capsys, *look, "keyColumns=nope")[1]


def followed(table: Path, folder: Path) -> None:
    """Has a stream read all of the table, and then ends it."""
    DeltaTable(table).alter.set_table_properties(FEED)
    run = DeltaRun(folder, table)
    run.catch_up()
    run.restart()


def test_a_stream_is_looked_at_and_ended_without_a_url(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    followed(table, tmp_path)
    DeltaTable(table).delete("id = 1")
    state = ("--state-dir", str(tmp_path / "state"))
    status, text = output_of(capsys, "status", *state, "--json")
    figures = json.loads(text)
    assert (status, figures["lag_versions"]) == (0, 1)
    assert figures["lag_bytes"] > 0
    assert datetime.fromisoformat(figures["complete_until"]) < datetime.now(UTC)
    assert "1 versions to read" in output_of(capsys, "status", *state)[1]
    status, text = output_of(capsys, "drop", *state)
    assert (status, text.splitlines()[0]) == (0, f"dropped stream {figures['stream']} of {table}")
    assert not (tmp_path / "state" / "backfill.duckdb").exists()


def test_of_a_table_that_was_made_again_no_lag_is_reported(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    followed(table, tmp_path)
    shutil.rmtree(table)
    write_deltalake(table, pa.table({"id": range(10), "n": range(10)}), configuration=FEED)
    status, text = output_of(capsys, "status", "--state-dir", str(tmp_path / "state"), "--json")
    figures = json.loads(text)
    assert (status, "lag_versions" in figures) == (0, False)
    assert "was deleted and made again: the table that was read has id" in figures["unreachable"]


def test_a_stream_whose_key_has_quotes_and_commas_in_its_name_is_looked_at_and_ended_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, key = tmp_path / "table", ('a"b', "c,d")
    write_deltalake(table, pa.table([[1, 2], [3, 4]], names=list(key)), configuration=FEED)
    run = DeltaRun(tmp_path, table, key, {"keyColumns": '"a""b", "c,d"'})
    run.catch_up()
    run.restart()
    state = ("--state-dir", str(tmp_path / "state"))
    status, text = output_of(capsys, "status", *state, "--json")
    assert (status, json.loads(text)["lag_versions"]) == (0, 0)
    status, text = output_of(capsys, "drop", *state)
    assert (status, text.startswith("dropped stream ")) == (0, True)


@pytest.mark.parametrize("name", ["status", "pause"])
def test_a_command_whose_output_is_closed_says_nothing_and_does_what_it_is_to_do(tmp_path: Path, name: str) -> None:
    write_deltalake(tmp_path / "table", pa.table({"id": [1]}), configuration=FEED)
    DeltaRun(tmp_path, tmp_path / "table").catch_up()
    words = [sys.executable, "-m", "backfill", name, "--state-dir", str(tmp_path / "state")]
    run = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *words], stderr=subprocess.PIPE, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
