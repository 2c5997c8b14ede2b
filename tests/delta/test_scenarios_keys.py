"""The key of a Delta table: which columns it may be, and rows that it does not tell apart."""

from __future__ import annotations

import json
import shutil
from collections import deque
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from backfill.errors import BackfillError, OptionsError, TableError, UnsupportedTypeError
from backfill.options import parse
from backfill.upstream.delta import DeltaUpstream
from backfill.upstream.delta.keys import sorting
from backfill.upstream.delta.snapshot import measuring
from backfill.vnode import WHOLE_TABLE, ranges_between
from tests.delta.stream import DeltaRun
from tests.delta.tables import all_read, half_read, rows


def refused(table: Path, kind: type[BackfillError], match: str, **options: str) -> None:
    with pytest.raises(kind, match=match):
        DeltaUpstream(parse({"path": str(table), "keyColumns": "id", **options})).schema()


def test_a_key_has_to_be_of_columns_that_are_there_and_can_be_ordered(tmp_path: Path, table: Path) -> None:
    refused(table, OptionsError, "option keyColumns: .* has no column 'ID', did you mean 'id'?", keyColumns="ID")
    refused(table, OptionsError, "option columns: .* has no column 'w'; it has id, v", columns="id, w")
    DeltaTable.create(tmp_path / "floats", schema=pa.schema([("id", pa.float64()), ("tags", pa.list_(pa.int32()))]))
    refused(tmp_path / "floats", UnsupportedTypeError, "column 'id' of the key has the type double")
    refused(tmp_path / "floats", UnsupportedTypeError, "column 'tags' of the key", keyColumns="tags")
    refused(tmp_path / "none", TableError, "there is no Delta table")


def test_a_row_without_a_key_is_refused_in_the_table_and_in_a_change(tmp_path: Path, table: Path) -> None:
    run = all_read(tmp_path, table)
    write_deltalake(table, rows((None, "x")), mode="append")
    assert run.plan()
    with pytest.raises(TableError, match="the key column id is null in some rows"):
        run.read()
    with pytest.raises(TableError, match="the key column id is null in some rows"):
        DeltaRun(tmp_path / "other", table).plan()


def test_two_rows_of_one_key_are_refused_in_the_table_and_in_a_commit(tmp_path: Path, table: Path) -> None:
    run = all_read(tmp_path, table)
    write_deltalake(table, rows((20, "one"), (20, "two")), mode="append")
    assert run.plan()
    with pytest.raises(TableError, match="several rows with the same key"):
        run.read()
    with pytest.raises(TableError, match="several rows with the same key"):
        DeltaRun(tmp_path / "other", table).plan()


def test_a_checkpoint_of_a_table_of_postgresql_is_refused(tmp_path: Path, table: Path) -> None:
    run = half_read(tmp_path, table)
    run.restart()
    shutil.rmtree(run.folder / "state")
    run.offsets = [json.dumps({**json.loads(run.offsets[0]), "upstream": {"slot": "s", "table_id": "16384"}})]
    with pytest.raises(
        OptionsError, match="the checkpoint belongs to a table of PostgreSQL, and path names a Delta table"
    ):
        run.batch()


def test_a_null_in_the_key_is_found_wherever_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It need not be in the sample of keys that vnodes are cut by."""
    monkeypatch.setattr(measuring, "SAMPLE", 1)
    ids = [None if at == 501 else at for at in range(1000)]
    write_deltalake(tmp_path, pa.table({"id": pa.array(ids, pa.int64())}))
    upstream = DeltaUpstream(parse({"path": str(tmp_path), "keyColumns": "id"}))
    with closing(upstream), pytest.raises(TableError, match="is null"):
        upstream.bounds(4)


def test_rows_of_one_key_are_found_on_either_side_of_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorting, "BATCH_ROWS", 1)
    write_deltalake(tmp_path, pa.table({"id": pa.array([1, 2, 2, 3], pa.int64())}))
    upstream = DeltaUpstream(parse({"path": str(tmp_path), "keyColumns": "id"}))
    with closing(upstream), pytest.raises(TableError, match="several rows with the same key"):
        deque(upstream.reader().scan([WHOLE_TABLE]), maxlen=0)


def test_a_row_without_a_key_that_has_come_since_a_read_was_planned_is_not_passed_over(table: Path) -> None:
    """Such a row lies in no range, and statistics rule out a file that has only such rows."""
    upstream = DeltaUpstream(parse({"path": str(table), "keyColumns": "id", "filter": "v <> 'left out'"}))
    with closing(upstream):
        reader, (first, *others) = upstream.reader(), ranges_between(upstream.bounds(2))
    assert others
    write_deltalake(table, rows((None, "left out")), mode="append")
    deque(reader.scan([first]), maxlen=0)
    write_deltalake(table, rows((None, "x")), mode="append")
    with pytest.raises(TableError, match="the key column id is null in some rows"):
        deque(reader.scan([first]), maxlen=0)
