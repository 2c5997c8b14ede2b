"""A backlog of changes into Spark's noop sink, by a stream that has finished its backfill."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from backfill.state_dir.claim import claim
from benchmarks import debezium
from benchmarks.bed import ACCOUNTS, WIDE, Bed
from benchmarks.report import Comparison, Table, ratios, speeds, where
from benchmarks.rounds import Rounds, Run, take_turns
from benchmarks.stream import PARTS, WALL, drain

ROWS = 1_000_000
WIDE_ROWS = 50_000
SIZES = (1, 100, 10_000)
"""Changes per transaction."""

OURS = "backfill"
PEEK = "bare peek"
BINARY_PEEK = "bare peek, binary"
AT_LEAST_PEEK = 0.6
AT_LEAST_DEBEZIUM = 8


@dataclass(frozen=True, slots=True)
class Changed:
    """A table that is changed: its key, whose values begin with 1, and a column of numbers."""

    table: str
    key: str
    value: str


ACCOUNTS_CHANGED: Final = Changed(ACCOUNTS, "aid", "abalance")
WIDE_CHANGED: Final = Changed(WIDE, "id", "reading_0")


@dataclass(frozen=True)
class Rewindable:
    """A stream that has finished its backfill and can be put back there: its checkpoint, its state and its slot.

    The log from there on is kept by a copy of the slot, so that any number of runs read the same.
    """

    bed: Bed
    folder: Path
    name: str = "bench"
    of: Changed = ACCOUNTS_CHANGED
    further: Mapping[str, str] = field(default_factory=dict)
    """Options in addition to those of every stream."""

    @classmethod
    def backfilled(cls, bed: Bed, name: str = "bench", of: Changed = ACCOUNTS_CHANGED, **further: str) -> Rewindable:
        """A stream of the whole table, at a point in the log after its backfill."""
        stream = cls(bed, bed.fresh_folder(), name, of, further)
        bed.publish(stream.publication, of.table)
        drain(bed.spark, stream.options, stream.checkpoint)
        # A first batch of changes takes it from the backfill's last state to a mere position in the log.
        bed.database.execute(f"UPDATE {of.table} SET {of.value} = 0 WHERE {of.key} <= 100")
        drain(bed.spark, stream.options, stream.checkpoint)
        stream._wait_for_its_driver()
        shutil.copytree(stream._live, stream._kept)
        bed.drop_slot(stream.kept)
        bed.database.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", [stream.slot, stream.kept])
        return stream

    @property
    def slot(self) -> str:
        return f"{self.name}_stream"

    @property
    def publication(self) -> str:
        return f"{self.name}_publication"

    @property
    def kept(self) -> str:
        """The copy of the slot, which is never moved."""
        return f"{self.name}_kept"

    @property
    def _live(self) -> Path:
        return self.folder / "live"

    @property
    def _kept(self) -> Path:
        return self.folder / "kept"

    @property
    def checkpoint(self) -> Path:
        return self._live / "checkpoint"

    @property
    def options(self) -> dict[str, str]:
        return {
            **self.bed.database.options,
            "dbtable": self.of.table,
            "stateDir": str(self._live / "state"),
            "slotName": self.slot,
            "publicationName": self.publication,
            "numPartitions": "2",
            **self.further,
        }

    def _wait_for_its_driver(self) -> None:
        """Waits for the end of Spark's process for the stream, which comes some time after that of the query."""
        claim(self._live / "state").close()

    def rewind(self) -> None:
        self._wait_for_its_driver()
        shutil.rmtree(self._live)
        shutil.copytree(self._kept, self._live)
        self.bed.drop_slot(self.slot)
        self.bed.database.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", [self.kept, self.slot])

    def drain(self) -> Run:
        """Reads everything since the point that the stream was put back to."""
        return drain(self.bed.spark, self.options, self.checkpoint)

    def drop(self) -> None:
        for slot in (self.slot, self.kept):
            self.bed.drop_slot(slot)
        shutil.rmtree(self.folder)


def run(bed: Bed, rows: int | None, rounds: Rounds) -> Iterator[Table]:
    for size in SIZES:
        accounts = bed.fill(100_000)
        stream = Rewindable.backfilled(bed)
        count = max(1, (rows or ROWS) // size)
        change(bed, transactions=count, size=size, rows=accounts)
        yield from _compare(bed, stream, size, count * size, rounds)
        stream.drop()


def run_wide(bed: Bed, rows: int | None, rounds: Rounds) -> Iterator[Table]:
    """Measures changes to rows of very many columns."""
    size = 100
    readings = bed.fill_wide(max(size, (rows or WIDE_ROWS) // size * size))
    stream = Rewindable.backfilled(bed, of=WIDE_CHANGED)
    change(bed, transactions=readings // size, size=size, rows=readings, of=WIDE_CHANGED)
    yield from _compare(bed, stream, size, readings, rounds)
    stream.drop()


def change(bed: Bed, *, transactions: int, size: int, rows: int, of: Changed = ACCOUNTS_CHANGED) -> None:
    """Commits so many transactions one after the other, each of which updates `size` of the table's `rows`."""
    statement = (
        f"DO $$ BEGIN FOR i IN 0 .. {transactions - 1} LOOP UPDATE {of.table} SET {of.value} = i "
        f"WHERE {of.key} > i::bigint * {size} % {rows} AND {of.key} <= i::bigint * {size} % {rows} + {size}; "
        "COMMIT; END LOOP; END $$"
    )
    with bed.database.connect(autocommit=True) as session:
        session.execute("SET synchronous_commit = off")
        session.execute(statement)


def _compare(bed: Bed, stream: Rewindable, size: int, expected: int, rounds: Rounds) -> Iterator[Table]:
    def ours() -> Run:
        stream.rewind()
        found = stream.drain()
        if found.rows != expected:
            raise AssertionError(f"{found.rows} changes were read and {expected} were made")
        return found

    contenders = {
        PEEK: lambda: bed.psql(f"COPY ({_peek(stream)}) TO STDOUT", expected),
        BINARY_PEEK: lambda: bed.psql(f"COPY ({_peek(stream)}) TO STDOUT (FORMAT binary)", expected),
        OURS: ours,
    }
    comparisons = [Comparison(OURS, PEEK, AT_LEAST_PEEK), Comparison(OURS, BINARY_PEEK)]
    note = debezium.LEFT_OUT
    if debezium.jars():
        contenders[debezium.DEBEZIUM] = lambda: debezium.changes(
            bed, expected, stream.of.table, stream.kept, stream.publication
        )
        comparisons.append(Comparison(OURS, debezium.DEBEZIUM, AT_LEAST_DEBEZIUM))
        note = f"{debezium.DEBEZIUM}: the first {debezium.ROWS} of these changes, without its start."
    results = take_turns(contenders, rounds)
    what = f"Changes, transactions of {size}"
    yield speeds(
        f"{what}: speed",
        results,
        [
            f"{expected} updates of {stream.of.table} in transactions of {size}.",
            f"{PEEK}: psql, COPY (SELECT ... FROM pg_logical_slot_peek_binary_changes(...)) TO STDOUT, thrown away.",
            "backfill: the time of all its batches, until the commit log; without the start of the query.",
            note,
        ],
        unit="changes",
    )
    yield ratios(f"{what}: ratios", results, comparisons)
    yield where(f"{what}: where a stream's time goes", results, [*PARTS, WALL])


def _peek(stream: Rewindable) -> str:
    return (
        f"SELECT data FROM pg_logical_slot_peek_binary_changes('{stream.kept}', NULL, NULL, 'proto_version', '1', "
        f"'publication_names', '{stream.publication}')"
    )
