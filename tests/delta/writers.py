"""All that can happen to a Delta table, at random: to rows, and to files without a change of rows."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from tests.delta.laboratory import FEED

PARTS: Final = 4
ENOUGH: Final = 15
_TYPES: dict[str, pa.DataType] = {
    "id": pa.int64(),
    "part": pa.string(),
    "v": pa.string(),
    "tags": pa.list_(pa.string()),
}
COLUMNS = pa.schema(_TYPES)


def part_of(key: int) -> str:
    """Returns the name of a key's partition, with characters that are escaped in a path."""
    return f"part {key % PARTS}: é/%"


def rows(keys: list[int], text: str) -> pa.Table:
    columns = [keys, [part_of(key) for key in keys], [f"{text} {key}" for key in keys], [[text, None]] * len(keys)]
    return pa.table(dict(zip(COLUMNS.names, columns, strict=True)), schema=COLUMNS)


def make(folder: Path, size: int, *, partitioned: bool = True) -> None:
    """Makes a table of several files, whose ranges of keys overlap."""
    parts = ["part"] if partitioned else None
    DeltaTable.create(folder, schema=COLUMNS, partition_by=parts, configuration=FEED)
    for first in range(3):
        write_deltalake(folder, rows(list(range(first, size, 3)), "at first"), mode="append")


class Writer:
    """Writes to the rows of some partitions; the others are for somebody else at the same time.

    Only one of them may rewrite files: `deltalake` lets two OPTIMIZE through at the same time, and all rows are there
    twice (1.6.6).
    """

    def __init__(self, folder: Path, random: Random, parts: range = range(PARTS), *, rewrites: bool = True) -> None:
        self._folder, self._random, self._parts = folder, random, parts
        self._count = 0
        self._ways: list[Callable[[DeltaTable], None]] = [
            self.append,
            self.update,
            self.move,
            self.delete,
            self.merge,
            self.merge_nothing,
            self.merge_the_same,
            self.overwrite,
            *([self.compact, self.z_order] if rewrites else []),
        ]

    def write(self) -> None:
        """Makes one commit, or none where somebody else was first or there is nothing to do."""
        self._count += 1
        table = DeltaTable(self._folder)
        with contextlib.suppress(CommitFailedError):
            self._random.choice(self._ways)(table)

    def restore(self) -> None:
        table = DeltaTable(self._folder)
        table.restore(self._random.randrange(max(1, table.version() - 5), table.version()))

    # -- ways to write ---------------------------------------------------------------------------------------------

    def append(self, table: DeltaTable) -> None:
        write_deltalake(table, rows(self._absent(table), self._text), mode="append")

    def update(self, table: DeltaTable) -> None:
        table.update(updates={"v": f"'{self._text}'"}, predicate=self._some(table))

    def move(self, table: DeltaTable) -> None:
        """Moves a row to another key of the same partition."""
        old, new = self._random.choice(self._present(table)), self._absent(table)[0]
        new += (old - new) % PARTS
        if new not in self._present(table):
            table.update(updates={"id": str(new)}, predicate=f"id = {old}")

    def delete(self, table: DeltaTable) -> None:
        """Deletes some rows, unless that would leave too few to choose from."""
        if len(self._present(table)) > ENOUGH:
            table.delete(self._some(table))

    def merge(self, table: DeltaTable) -> None:
        source = rows(self._random.sample(self._present(table), 5) + self._absent(table), self._text)
        merge = table.merge(source, "t.part = s.part AND t.id = s.id", source_alias="s", target_alias="t")
        merge = merge.when_matched_delete("s.id % 3 = 0").when_matched_update_all()
        merge.when_not_matched_insert_all().execute()

    def merge_nothing(self, table: DeltaTable) -> None:
        source = rows(self._absent(table), self._text)
        merge = table.merge(source, "t.part = s.part AND t.id = s.id", source_alias="s", target_alias="t")
        merge.when_matched_update_all().execute()

    def merge_the_same(self, table: DeltaTable) -> None:
        """Writes some rows again as they are."""
        source = pa.table(table.scan(predicate=self._some(table)))
        merge = table.merge(source, "t.part = s.part AND t.id = s.id", source_alias="s", target_alias="t")
        merge.when_matched_update_all().execute()

    def overwrite(self, table: DeltaTable) -> None:
        """Overwrites one partition: some of its rows stay the same, some are gone, and some are new or changed."""
        part = self._random.choice(self._parts)
        there = pa.table(table.scan(predicate=f"part = '{part_of(part)}'")).cast(COLUMNS)
        kept = there.filter(pa.array([self._random.random() < 0.7 for _ in range(there.num_rows)], pa.bool_()))
        present = set(kept["id"].to_pylist())
        new = [key for key in range(part, 200, PARTS) if key not in present and self._random.random() < 0.1]
        written = pa.concat_tables([kept, rows(new, self._text)])
        write_deltalake(table, written, mode="overwrite", predicate=f"part = '{part_of(part)}'")

    @staticmethod
    def compact(table: DeltaTable) -> None:
        table.optimize.compact()

    @staticmethod
    def z_order(table: DeltaTable) -> None:
        table.optimize.z_order(["id"])

    # -- which rows ------------------------------------------------------------------------------------------------

    @property
    def _text(self) -> str:
        return f"write {self._parts.start}.{self._count}"

    def _mine(self, keys: list[int]) -> list[int]:
        return [key for key in keys if key % PARTS in self._parts]

    def _present(self, table: DeltaTable) -> list[int]:
        found: list[Any] = pa.table(table.scan(columns=["id"]))["id"].to_pylist()
        return sorted(self._mine(found))

    def _absent(self, table: DeltaTable) -> list[int]:
        present = set(self._present(table))
        free = [key for key in self._mine(list(range(-20, 300))) if key not in present]
        return self._random.sample(free, 3)

    def _some(self, table: DeltaTable) -> str:
        keys = ", ".join(map(str, self._random.sample(self._present(table), 4)))
        parts = ", ".join(f"'{part_of(part)}'" for part in self._parts)
        return f"part IN ({parts}) AND id IN ({keys})"


class Writers:
    """Two that write at the same time, each to partitions of its own, until the block ends."""

    def __init__(self, folder: Path, random: Random) -> None:
        halves = range(PARTS // 2), range(PARTS // 2, PARTS)
        self._writers = [Writer(folder, Random(random.random()), half, rewrites=half.start == 0) for half in halves]
        self._end = threading.Event()
        self._failed: list[Exception] = []
        self._threads = [threading.Thread(target=self._run, args=(writer,)) for writer in self._writers]

    def _run(self, writer: Writer) -> None:
        try:
            while not self._end.wait(0.02):
                writer.write()
        except Exception as error:  # noqa: BLE001 - told where the block ends
            self._failed.append(error)

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()
        if self._failed:
            raise self._failed[0]
