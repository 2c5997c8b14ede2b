"""A stream over a Delta table without Spark: Spark's log and commits, with time travel as the judge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from backfill import handoff
from backfill.opening import open_stream
from backfill.options import parse
from backfill.stream import Stream
from backfill.upstream.delta.position import Position
from backfill.vnode import Coverage, Key
from integration.fold import Fold, Row, Rows
from tests.query import Query


@dataclass
class DeltaRun(Query[Row]):
    """One checkpoint over any number of processes of the driver; tasks run here."""

    folder: Path
    table: Path
    key: tuple[str, ...] = ("id",)
    options: Mapping[str, str] = field(default_factory=dict)
    offsets: list[str] = field(default_factory=list)
    committed: int = 0
    fold: Fold = field(init=False)
    _stream: Stream | None = None

    def __post_init__(self) -> None:
        self.fold = Fold(self.key)

    # -- the driver's process --------------------------------------------------------------------------------------

    def stream(self) -> Stream:
        if self._stream is None:
            own = {"path": str(self.table), "keyColumns": ", ".join(self.key), "stateDir": str(self.folder / "state")}
            self._stream = open_stream(parse({**own, **self.options}, streaming=True))
        return self._stream

    def restart(self, **options: str) -> None:
        """Ends the driver; the next one goes on from the checkpoint, with some options set to other values."""
        if self._stream is not None:
            self._stream.close()
        self._stream = None
        self.options = {**self.options, **options}

    # -- batches ---------------------------------------------------------------------------------------------------

    def read(self) -> list[Row]:
        return [row for part in self.parts() for row in self._task(part, self.stream())]

    @staticmethod
    def _task(part: handoff.Part, stream: Stream) -> Iterator[Row]:
        for batch in handoff.read(part, stream.reader(), stream.rows):
            assert batch.schema.equals(stream.rows.schema)
            yield from batch.to_pylist()

    def commit(self, rows: list[Row]) -> None:
        """Gives the batch to the sink, and requires what has to hold after it (I1)."""
        self.fold.apply(rows)
        self.committed += 1
        assert self.fold.rows == self.expected()

    # -- where it stands, and the judge ----------------------------------------------------------------------------

    @property
    def version(self) -> int:
        return Position.parse(self.barrier().epoch.position).version

    def expected(self) -> Rows:
        """Returns the rows with the keys that have been emitted, in the version that the last batch ended at."""
        columns = self.stream().rows.table.output
        found = pa.table(DeltaTable(self.table, version=self.version).scan(columns=list(columns)))
        rows = found.cast(self.stream().rows.table.output_columns).to_pylist()
        coverage = self.barrier().progress.coverage
        return {key: row for row in rows if _covers(coverage, key := tuple(row[name] for name in self.key))}


def _covers(coverage: Coverage, key: tuple[Any, ...]) -> bool:
    def at_most(one: tuple[Any, ...], end: Key) -> bool:
        return one <= tuple(type(value)(text) for value, text in zip(one, end, strict=True))

    return any(
        (item.after is None or not at_most(key, item.after)) and (item.upto is None or at_most(key, item.upto))
        for item in coverage
    )
