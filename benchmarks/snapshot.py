"""A table into Spark's noop sink: pgbench's accounts; orders, whose columns are of many types; passages with vectors;
and a wide one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

from benchmarks import debezium, handing_over
from benchmarks.bed import ACCOUNTS, JDBC_DRIVER, ORDERS, PASSAGES, VECTOR_LENGTH, WIDE, WIDE_COLUMNS, Bed
from benchmarks.report import Comparison, Table, ratios, speeds, where
from benchmarks.rounds import Contender, Rounds, Run, take_turns
from benchmarks.stream import PARTS, WALL, drain

ROWS = 4_000_000
ORDERS_ROWS = 2_000_000
PASSAGES_ROWS = 50_000
WIDE_ROWS = 50_000
READERS = (1, 2)
COPY = "psql COPY binary"
FETCH_SIZE = 10_000
SLOT = "bench_snapshot"
STAGED_FIRST = "snapshot staged first"

AT_LEAST_JDBC = 1.4
AT_LEAST_COPY = 0.6
AT_LEAST_DEBEZIUM = 10


MODES: Final[Mapping[str, Mapping[str, str]]] = {
    "snapshot": {"startupMode": "snapshot"},
    "snapshot without metadata": {"startupMode": "snapshot", "metadataColumns": "none"},
    "initial": {"startupMode": "initial", "slotName": SLOT},
    STAGED_FIRST: {"startupMode": "snapshot", "stageBeforeEmit": "true"},
}
"""Options of the streams; the second has the same columns as JDBC."""

AGAINST_OTHERS: Final = tuple(mode for mode in MODES if mode != STAGED_FIRST)


def ours(readers: int, mode: str) -> str:
    return f"backfill {mode}, {readers} reader{'s' if readers > 1 else ''}"


def _partitions(readers: int) -> str:
    return "1 partition" if readers == 1 else f"{readers} partitions"


def batch(readers: int) -> str:
    return f"backfill spark.read, {_partitions(readers)}"


def jdbc(readers: int) -> str:
    return f"Spark JDBC, {_partitions(readers)}"


def in_memory(readers: int) -> str:
    return f"rows in memory, {_partitions(readers)}"


OF_ONE_READER: Final = (batch(1), *(ours(1, mode) for mode in AGAINST_OTHERS))


def run(bed: Bed, rows: int | None, rounds: Rounds) -> Iterator[Table]:
    """Measures rows that are quickly read: three integers and a text."""
    count = bed.fill(rows or ROWS)
    contenders: dict[str, Contender] = {}
    comparisons: list[Comparison] = []
    for readers in READERS:
        contenders[in_memory(readers)] = partial(_in_memory, bed, readers, count)
        if JDBC_DRIVER.exists():
            comparisons.append(Comparison(in_memory(readers), jdbc(readers)))
    notes = ["rows in memory: such rows, which nobody has to read, handed over in Python; no source there is faster."]
    if debezium.jars():
        contenders[debezium.DEBEZIUM] = partial(debezium.snapshot, bed, count)
        comparisons += [Comparison(name, debezium.DEBEZIUM, AT_LEAST_DEBEZIUM) for name in OF_ONE_READER]
        notes.append(f"{debezium.DEBEZIUM}: the first {debezium.ROWS} rows, without its start.")
    else:
        notes.append(debezium.LEFT_OUT)
    title = f"{count} rows of pgbench_accounts"
    yield from _compared(_Source(bed, ACCOUNTS, "aid", count), rounds, title, contenders, comparisons, notes)


def run_orders(bed: Bed, rows: int | None, rounds: Rounds) -> Iterator[Table]:
    """Measures rows on which the server and the readers have to work more: numeric, uuid, timestamps, nulls."""
    count = bed.fill_orders(rows or ORDERS_ROWS)
    source = _Source(bed, ORDERS, "order_id", count)
    yield from _compared(source, rounds, f"{count} rows of {ORDERS}, ten columns of eight types")


def run_vectors(bed: Bed, rows: int | None, rounds: Rounds) -> Iterator[Table]:
    """Measures rows that are mostly an array of numbers."""
    count = bed.fill_passages(rows or PASSAGES_ROWS)
    source = _Source(bed, PASSAGES, "id", count)
    yield from _compared(source, rounds, f"{count} rows of {PASSAGES}, with vectors of {VECTOR_LENGTH} real")


def run_wide(bed: Bed, rows: int | None, rounds: Rounds) -> Iterator[Table]:
    """Measures rows of very many columns."""
    count = bed.fill_wide(rows or WIDE_ROWS)
    source = _Source(bed, WIDE, "id", count)
    yield from _compared(source, rounds, f"{count} rows of {WIDE}, {WIDE_COLUMNS + 1} columns of integers")


@dataclass(frozen=True, slots=True)
class _Source:
    """A table that is read, and its key's column, whose values begin with 1."""

    bed: Bed
    table: str
    key: str
    count: int


def _compared(
    source: _Source,
    rounds: Rounds,
    title: str,
    others: Mapping[str, Contender] = MappingProxyType({}),
    further: Sequence[Comparison] = (),
    notes: Sequence[str] = (),
) -> Iterator[Table]:
    """Measures ours beside COPY, JDBC and others, which take turns."""
    command = f"COPY {source.table} TO STDOUT (FORMAT binary)"
    contenders: dict[str, Contender] = {COPY: partial(source.bed.psql, command, source.count)}
    comparisons = [Comparison(name, COPY, AT_LEAST_COPY) for name in OF_ONE_READER]
    for readers in READERS:
        for mode in MODES:
            contenders[ours(readers, mode)] = partial(_backfill, source, mode, readers)
        contenders[batch(readers)] = partial(_read, source, readers)
        comparisons.append(Comparison(ours(readers, STAGED_FIRST), ours(readers, "snapshot")))
        if JDBC_DRIVER.exists():
            contenders[jdbc(readers)] = partial(_jdbc, source, readers)
            names = [batch(readers), *(ours(readers, mode) for mode in AGAINST_OTHERS)]
            comparisons += [Comparison(name, jdbc(readers), AT_LEAST_JDBC) for name in names]
    results = take_turns({**contenders, **others}, rounds)
    yield speeds(f"Snapshot of {title}: speed", results, [*_NOTES, *notes])
    yield ratios(f"Snapshot of {title}: ratios", results, [*comparisons, *further])
    yield where(f"Snapshot of {title}: where a stream's time goes", results, [*PARTS, WALL])


_NOTES: Final = (
    f"{COPY}: one connection, output thrown away.",
    f"Spark JDBC: fetchsize {FETCH_SIZE}, partitions by the key; the time of the write, without load()."
    if JDBC_DRIVER.exists()
    else f"Spark JDBC is left out: there is no {JDBC_DRIVER}; install libpostgresql-jdbc-java.",
    "backfill: the time of all its batches, with publication and slot (initial), key slices and counts, staging,",
    "Spark's offset and commit log; without load() and without the start of the query's Python process.",
)


def _backfill(source: _Source, mode: str, readers: int) -> Run:
    bed, folder = source.bed, source.bed.fresh_folder()
    options = {
        **bed.database.options,
        "dbtable": source.table,
        "stateDir": str(folder / "state"),
        "numPartitions": str(readers),
        **MODES[mode],
    }
    found = drain(bed.spark, options, folder / "checkpoint")
    bed.drop_slot(SLOT)
    drop_publications(bed)
    if found.rows != source.count:
        raise AssertionError(f"{found.rows} rows were read and {source.count} are there")
    return found


def _read(source: _Source, readers: int) -> Run:
    """Reads the table as a batch, as Spark's JDBC source does: without a stream's columns, staging and offsets."""
    options = {**source.bed.database.options, "dbtable": source.table, "numPartitions": str(readers)}
    frame = source.bed.spark.read.format("backfill").options(**options).load()
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return Run(source.count, time.perf_counter() - began)


def _in_memory(bed: Bed, readers: int, count: int) -> Run:
    return handing_over.read(bed.spark, readers, count)


def drop_publications(bed: Bed) -> None:
    for (name,) in bed.database.execute("SELECT quote_ident(pubname) FROM pg_publication"):
        bed.database.execute(f"DROP PUBLICATION {name}")


def _jdbc(source: _Source, readers: int) -> Run:
    read = source.bed.spark.read.format("jdbc").options(
        url=source.bed.jdbc_url, dbtable=source.table, driver="org.postgresql.Driver", fetchsize=str(FETCH_SIZE)
    )
    if readers > 1:
        read = read.options(
            partitionColumn=source.key, lowerBound="1", upperBound=str(source.count), numPartitions=str(readers)
        )
    frame = read.load()
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return Run(source.count, time.perf_counter() - began)
