"""A table whose log begins with a checkpoint of version 2, as Spark writes it: its files are named in sidecars.

`deltalake` reads sidecars and does not write them. They are made here from a checkpoint that it has written.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from backfill.errors import DataLossError, FileGoneError, TableError
from backfill.options import parse
from backfill.upstream.delta import DeltaUpstream
from tests.delta import vectors
from tests.delta.laboratory import FEED
from tests.delta.stream import DeltaRun

FEATURES = ["v2Checkpoint", "deletionVectors"]
OF_FILES = ["add", "remove"]


def begin_log_with_checkpoint(folder: Path, write: Callable[[Path, pa.Table, list[dict[str, Any]]], None]) -> None:
    """Writes a checkpoint of the latest version, and leaves no commit in the log but that of this version."""
    log, table = folder / "_delta_log", DeltaTable(folder)
    table.create_checkpoint()
    classic = log / f"{table.version():020}.checkpoint.parquet"
    found = pq.read_table(classic)
    for path in (classic, log / "_last_checkpoint", *sorted(log.glob("*.json"))[:-1]):
        path.unlink()
    of_files = pa.array([any(row[name] for name in OF_FILES) for row in found.to_pylist()])
    write(log / f"{table.version():020}.checkpoint.{uuid.uuid4()}", found, sidecars(log, found.filter(of_files)))


def sidecars(log: Path, files: pa.Table) -> list[dict[str, Any]]:
    """Writes the files' actions to two sidecars, and returns what the checkpoint has to say of these."""
    (log / "_sidecars").mkdir()
    half = files.num_rows // 2
    named = []
    for part in (files.slice(0, half), files.slice(half)):
        path = log / "_sidecars" / f"{uuid.uuid4()}.parquet"
        pq.write_table(part.select(OF_FILES), path)
        named.append({"path": path.name, "sizeInBytes": path.stat().st_size, "modificationTime": 1})
    assert half
    return named


def as_json(path: Path, found: pa.Table, named: list[dict[str, Any]]) -> None:
    rows = [row for row in found.to_pylist(maps_as_pydicts="strict") if not any(row[name] for name in OF_FILES)]
    lines = [json.dumps({name: value for name, value in row.items() if value is not None}) for row in rows]
    path.with_name(f"{path.name}.json").write_text(
        "\n".join([*lines, *(json.dumps({"sidecar": each}) for each in named)])
    )


def as_parquet(path: Path, found: pa.Table, named: list[dict[str, Any]]) -> None:
    others = [row for row in found.drop_columns(OF_FILES).to_pylist() if any(row.values())]
    rows = [*others, *({"sidecar": each} for each in named)]
    schema = found.drop_columns(OF_FILES).schema
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path.with_name(f"{path.name}.parquet"))


@pytest.fixture(params=[as_json, as_parquet])
def half_read(request: pytest.FixtureRequest, tmp_path: Path) -> DeltaRun:
    """A stream in the middle of its backfill; the log has lost the commits that the stream has read."""
    table = tmp_path / "table"
    parts = ["a", "b"] * 3
    write_deltalake(table, pa.table({"id": range(6), "p": parts}), partition_by=["p"], configuration=FEED)
    features = {"readerFeatures": FEATURES, "writerFeatures": [*FEATURES, "changeDataFeed"]}
    vectors.commit(table, [{"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}])
    vectors.delete_rows(table, [1], within="p=b/")
    DeltaTable(table).delete("id = 0")
    run = DeltaRun(tmp_path, table, options={"vnodeCount": "2", "numPartitions": "1"})
    run.batch(1)
    assert not run.backfilled
    begin_log_with_checkpoint(table, request.param)
    run.restart()
    return run


def test_a_table_whose_files_are_named_in_sidecars_is_read_and_followed(half_read: DeltaRun) -> None:
    run, table = half_read, half_read.table
    run.catch_up()
    assert sorted(run.fold.rows) == [(key,) for key in (1, 2, 4, 5)]
    write_deltalake(table, pa.table({"id": [1, 9], "p": ["b", "b"]}), mode="overwrite")
    run.catch_up()
    assert run.fold.counts == {"insert": 5, "delete": 3}
    run.restart()
    DeltaTable(table).delete("id = 9")
    run.catch_up()
    assert run.fold.rows == {(1,): {"id": 1, "p": "b"}}
    other = DeltaRun(run.folder / "other", table)
    other.catch_up()
    assert other.fold.rows == run.fold.rows


def test_the_oldest_changes_are_those_after_the_checkpoint(half_read: DeltaRun) -> None:
    begin = DeltaTable(half_read.table).version()
    DeltaTable(half_read.table).delete("id = 5")
    upstream = DeltaUpstream(parse({"path": str(half_read.table), "keyColumns": "id"}))
    found = upstream.span("earliest", "latest")
    assert (found.after, found.upto) == (str(begin), str(begin + 1))
    assert [batch["version"].to_pylist() for batch in found.read()] == [[begin + 1]]
    with pytest.raises(DataLossError, match=f"version {begin - 1} of .* is no longer available") as lost:
        upstream.span(str(begin - 1), "latest")
    assert "Read what is left with startingPosition=earliest" in str(lost.value)
    assert "checkpointLocation" not in str(lost.value), "which only a stream has"


def test_a_sidecar_that_is_gone_is_reported(half_read: DeltaRun) -> None:
    for sidecar in (half_read.table / "_delta_log" / "_sidecars").iterdir():
        sidecar.unlink()
    with pytest.raises(FileGoneError, match="_sidecars"):
        half_read.plan()


def test_a_checkpoint_that_the_log_names_and_has_not_is_reported_with_what_to_do(tmp_path: Path, table: Path) -> None:
    run = DeltaRun(tmp_path, table)
    DeltaTable(table).create_checkpoint()
    [checkpoint] = (table / "_delta_log").glob("*.checkpoint.parquet")
    checkpoint.unlink()
    with pytest.raises(TableError, match=r"names a missing checkpoint: .* remove its file _last_checkpoint"):
        run.plan()
    (table / "_delta_log" / "_last_checkpoint").unlink()
    run.catch_up()
    assert len(run.fold.rows) == 10
