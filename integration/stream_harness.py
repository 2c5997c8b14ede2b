"""A stream on a real database without Spark: Spark's log and commits, with the database itself as the judge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from backfill import handoff
from backfill.offset import Barrier, Nothing, Offset, from_text, to_text
from backfill.options import parse
from backfill.progress import Finished, Frontier
from backfill.opening import open_stream
from backfill.stream import Budget, Stream
from backfill.vnode import WHOLE_TABLE, Coverage
from integration.database import Database

Row = dict[str, Any]


@dataclass
class Fold:
    """Applies rows in the order of `_sequence`, and refuses what no consumer could apply (I2, I3)."""

    key: tuple[str, ...]
    rows: dict[tuple[Any, ...], Row] = field(default_factory=dict)
    sequences: dict[tuple[Any, ...], int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def apply(self, batch: list[Row]) -> None:
        for row in sorted(batch, key=lambda row: row["_sequence"]):
            self._apply(row)

    def _apply(self, row: Row) -> None:
        key = tuple(row[name] for name in self.key)
        kind = row["_change_type"]
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if kind == "truncate":
            self.rows.clear()
            return
        assert row["_sequence"] > self.sequences.get(key, -1), f"_sequence does not grow: {row}"
        self.sequences[key] = row["_sequence"]
        values = {name: value for name, value in row.items() if not name.startswith("_")}
        match kind:
            case "insert":
                assert key not in self.rows, f"insert of a present key: {row}"
                self.rows[key] = values
            case "update_preimage":
                assert self.rows.get(key) == values, f"not the row before: {row}"
            case "update_postimage":
                assert key in self.rows, f"update of an absent key: {row}"
                self.rows[key] = values
            case "delete":
                assert key in self.rows, f"delete of an absent key: {row}"
                del self.rows[key]
            case _:
                raise AssertionError(f"unknown change type {kind}")


class StreamRun:
    """One checkpoint over any number of processes of the driver; tasks run here."""

    def __init__(self, database: Database, folder: Path, table: str, key: tuple[str, ...], **options: str) -> None:
        self.database = database
        self.options: Mapping[str, str] = {
            **database.options,
            "dbtable": table,
            "stateDir": str(folder / "state"),
            **options,
        }
        self.offsets: list[str] = []
        self.committed = 0
        self.fold = Fold(key)
        self._stream: Stream | None = None

    def stream(self) -> Stream:
        if self._stream is None:
            self._stream = open_stream(parse(self.options, streaming=True))
        return self._stream

    def stop(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream = None

    def offset(self, number: int) -> Offset:
        return from_text(self.offsets[number - 1]) if number else Nothing()

    def plan(self, max_rows: int | None = None) -> bool:
        """Logs the end of the next batch; False where there is nothing to read. A batch that is logged stays."""
        if len(self.offsets) > self.committed:
            return True
        start = self.offset(self.committed)
        end = self.stream().latest_offset(start, Budget(max_rows))
        if to_text(end) == to_text(start):
            return False
        self.offsets.append(to_text(end))
        return True

    def read(self) -> list[Row]:
        stream = self.stream()
        rows: list[Row] = []
        for part in stream.parts(self.offset(self.committed), from_text(self.offsets[-1])):
            for batch in handoff.read(part, stream.reader(), stream.rows):
                assert batch.schema.equals(stream.rows.schema)
                rows += batch.to_pylist()
        return rows

    def commit(self, rows: list[Row]) -> None:
        self.fold.apply(rows)
        self.committed += 1

    def batch(self, max_rows: int | None = None) -> bool:
        if not self.plan(max_rows):
            return False
        self.commit(self.read())
        return True

    def barrier(self) -> Barrier:
        offset = self.offset(self.committed)
        assert isinstance(offset, Barrier)
        return offset

    @property
    def coverage(self) -> Coverage:
        progress = self.barrier().progress
        return progress.coverage if isinstance(progress, Frontier) else (WHOLE_TABLE,)

    @property
    def backfilled(self) -> bool:
        progress = self.barrier().progress
        return isinstance(progress, Finished) or not progress.unfinished

    def catch_up(self, *, most: int = 500) -> None:
        """Batches until nothing is left to read."""
        for _ in range(most):
            if not self.batch():
                return
        raise AssertionError(f"still not caught up after {most} batches")

    def table(self, connection: psycopg.Connection[Any], columns: str = "*") -> list[Row]:
        """What the database says the table holds."""
        with connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
            return cursor.execute(f"SELECT {columns} FROM {self.options['dbtable']}").fetchall()

    def require_equal(self, connection: psycopg.Connection[Any]) -> None:
        """The sink is the table."""
        expected = {tuple(row[name] for name in self.fold.key): row for row in self.table(connection)}
        assert self.fold.rows == expected
