"""Tables of a key and a text, and streams of them, for the scenarios."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from tests.delta.laboratory import FEED
from tests.delta.stream import DeltaRun

_TYPES: dict[str, pa.DataType] = {"id": pa.int64(), "v": pa.string()}
COLUMNS = pa.schema(_TYPES)


def rows(*pairs: tuple[int | None, str]) -> pa.Table:
    return pa.Table.from_pylist([{"id": key, "v": value} for key, value in pairs], schema=COLUMNS)


def created(folder: Path, properties: dict[str, str] = FEED, first: int = 10) -> Path:
    """Makes the table `(id, v)` with `first` rows, whose keys count from 0."""
    DeltaTable.create(folder, schema=COLUMNS, configuration=properties)
    write_deltalake(folder, rows(*[(key, f"v{key}") for key in range(first)]), mode="append")
    return folder


def half_read(tmp_path: Path, table: Path) -> DeltaRun:
    """Starts a stream that stays in the middle of its backfill."""
    run = DeltaRun(tmp_path, table, options={"vnodeCount": "3", "numPartitions": "1"})
    run.batch(5)
    assert not run.backfilled
    return run


def all_read(tmp_path: Path, table: Path) -> DeltaRun:
    run = half_read(tmp_path, table)
    run.catch_up()
    run.fold.counts.clear()
    return run


def merged(table: Path, source: pa.Table) -> Any:
    return DeltaTable(table).merge(source, "t.id = s.id", source_alias="s", target_alias="t")
