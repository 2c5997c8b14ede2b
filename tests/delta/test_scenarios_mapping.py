"""Columns that have other names in the files of a Delta table than in the table."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema, write_deltalake

from backfill.errors import BackfillError, DataLossError, TableError
from backfill.options import parse
from backfill.upstream.delta import DeltaUpstream
from backfill.upstream.delta.files.commits import Commit
from backfill.upstream.delta.files.log import Log, commit_file
from tests.delta import vectors
from tests.delta.laboratory import FEED
from tests.delta.stream import DeltaRun
from tests.delta.tables import COLUMNS, all_read, created, rows


def test_renamed_columns_are_refused_for_a_stream_and_read_as_a_snapshot(tmp_path: Path) -> None:
    table = created(tmp_path / "table", {**FEED, "delta.columnMapping.mode": "name"})
    run = DeltaRun(tmp_path, table)
    with pytest.raises(TableError, match="the changes of such a table cannot be read"):
        run.plan()
    run.restart(startupMode="snapshot")
    run.catch_up()
    assert run.fold.counts == {"insert": 10}


def test_column_mapping_by_id_is_refused(tmp_path: Path) -> None:
    """`deltalake` would read a column as null where a file has another name for it."""
    table = created(tmp_path / "table", {"delta.columnMapping.mode": "id"})
    with pytest.raises(TableError, match=r"have numbers in its files \(delta.columnMapping.mode = id\)"):
        DeltaRun(tmp_path, table, options={"startupMode": "snapshot"}).plan()


def test_columns_that_get_other_names_in_the_files_end_a_running_stream(tmp_path: Path, table: Path) -> None:
    run = all_read(tmp_path, table)
    map_columns(table)
    message = r"columns of version 2 of .* have other names .*'delta.columnMapping.mode' = 'none'.* a fresh checkpoint"
    with pytest.raises(TableError, match=message):
        run.plan()


@pytest.mark.parametrize(
    ("checkpoint", "kind", "message"),
    [(3, TableError, "columns of version 3 of .* have other names"), (4, DataLossError, "no longer says whether")],
)
def test_changes_after_a_lost_commit_are_not_read_if_columns_had_other_names_then(
    tmp_path: Path, table: Path, checkpoint: int, kind: type[BackfillError], message: str
) -> None:
    """If they were read, their values would be null, as if the columns had been added later."""
    run = all_read(tmp_path, table)
    map_columns(table)
    file = table / "mapped.parquet"
    pq.write_table(pa.table({"id": [20], "v-stored": ["v20"]}), file)
    told_of = {"partitionValues": {}, "size": file.stat().st_size, "modificationTime": 1, "dataChange": True}
    vectors.commit(table, [{"add": {"path": file.name, **told_of}}])
    if checkpoint == 3:
        DeltaTable(table).create_checkpoint()
    take_mapping_away(table)
    DeltaTable(table).create_checkpoint()
    for version in range(3):
        (table / commit_file(version)).unlink()
    run.restart(failOnDataLoss="false")
    with pytest.raises(kind, match=message):
        run.plan()


def test_changes_after_a_lost_commit_are_read_if_columns_have_their_own_names_still(
    tmp_path: Path, table: Path
) -> None:
    run = all_read(tmp_path, table)
    for key in range(20, 24):
        write_deltalake(table, rows((key, "v")), mode="append")
    DeltaTable(table).create_checkpoint()
    for version in range(3):
        (table / commit_file(version)).unlink()
    DeltaTable(table).alter.set_table_properties({**FEED, "delta.appendOnly": "false"})
    run.restart(failOnDataLoss="false")
    assert run.plan()
    assert [row["id"] for row in run.read()] == [21, 22, 23]


def test_the_whole_log_is_not_read_for_what_its_oldest_version_tells(
    tmp_path: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log may have a hundred thousand commits, of which a batch takes some."""
    run = all_read(tmp_path, table)
    for key in range(20, 28):
        write_deltalake(table, rows((key, "v")), mode="append")
        if key == 21:
            DeltaTable(table).create_checkpoint()
    for version in range(3):
        (table / commit_file(version)).unlink()
    run.restart(failOnDataLoss="false")
    looked_at: list[int] = []
    commit = Log.commit

    def noting(log: Log, version: int) -> Commit | None:
        looked_at.append(version)
        return commit(log, version)

    monkeypatch.setattr(Log, "commit", noting)
    assert run.plan(1)
    assert [row["id"] for row in run.read()] == [21]
    assert max(looked_at) < 9


def test_the_oldest_changes_are_those_since_column_mapping_was_taken_away(tmp_path: Path) -> None:
    """A column that had another name in earlier files would be null, as if it had been added later."""
    table = created(tmp_path / "table", {**FEED, "delta.columnMapping.mode": "name"})
    write_deltalake(table, rows((10, "v10")), mode="append")
    DeltaTable(table).create_checkpoint()
    take_mapping_away(table)
    DeltaTable(table).delete("id = 1")
    upstream = DeltaUpstream(parse({"path": str(table), "keyColumns": "id"}))
    for version in ("1", "2"):
        with pytest.raises(TableError, match=f"had column mapping at version {version}.*startingPosition=earliest"):
            upstream.span(version, "latest")
    found = upstream.span("earliest", "latest")
    assert (found.after, found.upto) == ("3", "4")
    assert [batch["old"].to_pylist() for batch in found.read()] == [[{"id": 1, "v": "v1"}]]
    for commit in sorted((table / "_delta_log").glob("*.json"))[:2]:
        commit.unlink()
    assert upstream.span("earliest", "latest").after == "3", "though the oldest version that is left has it"


def take_mapping_away(table: Path) -> None:
    """Takes column mapping away as other writers do: by writing the files anew, under the columns' own names."""
    before = DeltaTable(table)
    file = table / "anew.parquet"
    pq.write_table(pa.table(before.scan()).cast(COLUMNS), file)
    definition = {
        "id": str(before.metadata().id),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": Schema.from_arrow(COLUMNS).to_json(),
        "partitionColumns": [],
        "configuration": FEED,
    }
    message = {"partitionValues": {}, "size": file.stat().st_size, "modificationTime": 1, "dataChange": False}
    gone = [{"path": path, "dataChange": False} for path in pa.table(before.get_add_actions())["path"].to_pylist()]
    removed = [{"remove": each} for each in gone]
    vectors.commit(table, [{"metaData": definition}, *removed, {"add": {"path": file.name, **message}}])


def map_columns(table: Path) -> None:
    """Gives a column another name in the files, as where it is dropped and one of its name is added again."""
    described = DeltaTable(table)
    schema = json.loads(described.schema().to_json())
    for number, field in enumerate(schema["fields"], 1):
        stored = "v-stored" if field["name"] == "v" else field["name"]
        field["metadata"] = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": stored}
    mapped = {
        "id": str(described.metadata().id),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema),
        "partitionColumns": [],
        "configuration": {**FEED, "delta.columnMapping.mode": "name"},
    }
    protocol = {"minReaderVersion": 2, "minWriterVersion": 5}
    vectors.commit(table, [{"protocol": protocol}, {"metaData": mapped}])
