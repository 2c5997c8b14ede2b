"""A Delta table that a test can do anything to, and the table as a laboratory for the laws of an upstream."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from deltalake import DeltaTable, Field, QueryBuilder, write_deltalake
from deltalake.schema import PrimitiveType

from backfill.options import parse
from backfill.upstream import Bookmark
from backfill.upstream.delta import DeltaUpstream
from tests.contract.laboratory import VALUE, KeyValue, Rows, Write
from tests.contract.laws.moves import STREAM

FEED = {"delta.enableChangeDataFeed": "true"}


KEY = ("region", "id")
_TYPES: dict[str, pa.DataType] = {"region": pa.string(), "id": pa.int32(), VALUE: pa.string()}
COLUMNS = pa.schema(_TYPES)
SOME_KEYS = [(region, number) for region in ["b", "B", "é a/%2F='", "ﬀ", "𝄞"] for number in range(-4, 6)]
"""Keys in no order. Some regions, as names of partitions, are escaped in a path."""


class Transaction:
    """Writes that have not happened yet."""

    def __init__(self, laboratory: DeltaLaboratory, writes: tuple[Write, ...]) -> None:
        self._laboratory, self._writes = laboratory, writes

    def commit(self) -> None:
        self._laboratory.write(*self._writes)

    def roll_back(self) -> None:
        pass


class DeltaLaboratory:
    """A Delta table. Each transaction is one MERGE, since Delta has no other way to do several things in one commit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        DeltaTable.create(folder, schema=COLUMNS, partition_by=["region"], configuration=FEED)
        self.keys = self._ascending(folder.parent / "order")

    @staticmethod
    def _ascending(folder: Path) -> list[KeyValue]:
        rows = [dict(zip(KEY, key, strict=True)) for key in SOME_KEYS]
        write_deltalake(folder, pa.Table.from_pylist(rows))
        found = pa.table(
            QueryBuilder().register("t", DeltaTable(folder)).execute("SELECT * FROM t ORDER BY region, id")
        )
        return [tuple(row[name] for name in KEY) for row in found.to_pylist()]

    @property
    def options(self) -> dict[str, str]:
        return {"path": str(self.folder), "keyColumns": ", ".join(KEY)}

    def open(self) -> DeltaUpstream:
        return DeltaUpstream(parse(self.options))

    def open_forgiving(self) -> DeltaUpstream:
        return DeltaUpstream(parse({**self.options, "failOnDataLoss": "false"}))

    def reading(self, _: Bookmark) -> DeltaUpstream:
        return self.open()

    def table(self, version: int | None = None) -> DeltaTable:
        return DeltaTable(self.folder, version=version)

    def write(self, *writes: Write) -> None:
        before = self.rows()
        after = dict(before)
        touched: dict[KeyValue, None] = {}
        for write in writes:
            if write.old is not None:
                del after[write.old]
                touched[write.old] = None
            if write.key is not None:
                assert write.key not in after
                after[write.key] = write.value
                touched[write.key] = None
        rows = [(*key, after.get(key), key not in after) for key in touched if key in before or key in after]
        if rows:
            self._merge(rows)

    def _merge(self, rows: Sequence[tuple[Any, ...]]) -> None:
        columns = COLUMNS.append(pa.field("gone", pa.bool_()))
        source = pa.Table.from_pylist([dict(zip(columns.names, row, strict=True)) for row in rows], schema=columns)
        values = {name: f"s.{name}" for name in COLUMNS.names}
        merge = self.table().merge(source, "t.region = s.region AND t.id = s.id", source_alias="s", target_alias="t")
        merge = merge.when_matched_delete("s.gone").when_matched_update(values)
        merge.when_not_matched_insert(values).execute()

    def hold(self, *writes: Write) -> Transaction:
        return Transaction(self, writes)

    def rows(self) -> Rows:
        found = self.table().to_pyarrow_table().to_pylist()
        return {tuple(row[name] for name in KEY): row[VALUE] for row in found}

    def lose_changes(self, bookmark: Bookmark) -> None:
        """Cleans up the log, as after `delta.logRetentionDuration`; does nothing for a stream that never began.

        A log keeps its last commit, so this first makes one that changes no row.
        """
        if dict(bookmark)["stream"] == STREAM:
            self.table().alter.set_table_properties({"delta.logRetentionDuration": "interval 1 hour"})
            clean_up(self.folder, keep=1)

    def add_column(self, name: str) -> None:
        self.table().alter.add_columns(Field(name, PrimitiveType("string")))


def clean_up(folder: Path, *, keep: int = 0) -> None:
    """Makes the log begin with a checkpoint of the latest version, and keeps only the last `keep` commits."""
    table = DeltaTable(folder)
    table.create_checkpoint()
    for file in sorted((folder / "_delta_log").glob("*.json"))[: table.version() + 1 - keep]:
        file.unlink()


def cloned(source: Path, folder: Path, *, scheme: str = "file:") -> Path:
    """Makes a shallow clone as other writers do: the rows stay in the files of its source."""
    (folder / "_delta_log").mkdir(parents=True)
    for commit in sorted((source / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        for action in actions:
            if "add" in action:
                action["add"]["path"] = f"{scheme}{quote(str(source))}/{action['add']['path']}"
        (folder / "_delta_log" / commit.name).write_text("\n".join(map(json.dumps, actions)))
    return folder


def vacuum(folder: Path) -> None:
    """Removes all files that the latest version does not have."""
    DeltaTable(folder).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)
