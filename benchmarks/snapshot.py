"""A table into Spark's noop sink."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from benchmarks import debezium, handing_over
from benchmarks.bed import ACCOUNTS, JDBC_DRIVER, Bed
from benchmarks.report import Comparison, Table, ratios, speeds, where
from benchmarks.rounds import Contender, Rounds, Run, take_turns
from benchmarks.stream import PARTS, WALL, drain

ROWS = 4_000_000
READERS = (1, 2)
COPY = "psql COPY binary"
FETCH_SIZE = 10_000
SLOT = "bench_snapshot"

AT_LEAST_JDBC = 1.4
AT_LEAST_COPY = 0.6
AT_LEAST_DEBEZIUM = 10


MODES: Final[Mapping[str, Mapping[str, str]]] = {
    "snapshot": {"startupMode": "snapshot"},
    "snapshot without metadata": {"startupMode": "snapshot", "metadataColumns": "none"},
    "initial": {"startupMode": "initial", "slotName": SLOT},
}
"""Options of the streams; the second has the same columns as JDBC."""


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


def run(bed: Bed, rows: int | None, rounds: Rounds) -> Iterator[Table]:
    count = bed.fill(rows or ROWS)
    contenders: dict[str, Contender] = {
        COPY: partial(bed.psql, f"COPY {ACCOUNTS} TO STDOUT (FORMAT binary)", count),
    }
    names = [batch(1), *(ours(1, mode) for mode in MODES)]
    comparisons = [Comparison(name, COPY, AT_LEAST_COPY) for name in names]
    notes = [f"{count} rows of pgbench_accounts. {COPY}: one connection, output thrown away."]
    for readers in READERS:
        for mode in MODES:
            contenders[ours(readers, mode)] = partial(_backfill, bed, mode, readers, count)
        contenders[batch(readers)] = partial(_read, bed, readers, count)
        contenders[in_memory(readers)] = partial(_in_memory, bed, readers, count)
        if JDBC_DRIVER.exists():
            contenders[jdbc(readers)] = partial(_jdbc, bed, readers, count)
            comparisons += [
                Comparison(batch(readers), jdbc(readers), AT_LEAST_JDBC),
                *(Comparison(ours(readers, mode), jdbc(readers), AT_LEAST_JDBC) for mode in MODES),
                Comparison(in_memory(readers), jdbc(readers)),
            ]
    if not JDBC_DRIVER.exists():
        notes.append(f"Spark JDBC is left out: there is no {JDBC_DRIVER}; install libpostgresql-jdbc-java.")
    if debezium.jars():
        contenders[debezium.DEBEZIUM] = partial(debezium.snapshot, bed, count)
        comparisons += [Comparison(name, debezium.DEBEZIUM, AT_LEAST_DEBEZIUM) for name in names]
        notes.append(f"{debezium.DEBEZIUM}: the first {debezium.ROWS} rows, without its start.")
    else:
        notes.append(debezium.LEFT_OUT)
    notes += [
        f"Spark JDBC: fetchsize {FETCH_SIZE}, partitions by aid; the time of the write, without load().",
        "rows in memory: such rows, which nobody has to read, handed to Spark from Python; no source there is faster.",
        "backfill: the time of all its batches, with publication and slot (initial), key slices and counts, staging,",
        "Spark's offset and commit log; without load() and without the start of the query's Python process.",
    ]
    results = take_turns(contenders, rounds)
    yield speeds("Snapshot: speed", results, notes)
    yield ratios("Snapshot: ratios", results, comparisons)
    yield where("Snapshot: where a stream's time goes", results, [*PARTS, WALL])


def _backfill(bed: Bed, mode: str, readers: int, expected: int) -> Run:
    folder = bed.fresh_folder()
    options = {
        **bed.database.options,
        "dbtable": ACCOUNTS,
        "stateDir": str(folder / "state"),
        "numPartitions": str(readers),
        **MODES[mode],
    }
    found = drain(bed.spark, options, folder / "checkpoint")
    bed.drop_slot(SLOT)
    drop_publications(bed)
    if found.rows != expected:
        raise AssertionError(f"{found.rows} rows were read and {expected} are there")
    return found


def _read(bed: Bed, readers: int, expected: int) -> Run:
    """The table as a batch, as Spark's JDBC source reads it: without a stream's columns, staging and offsets."""
    options = {**bed.database.options, "dbtable": ACCOUNTS, "numPartitions": str(readers)}
    frame = bed.spark.read.format("backfill").options(**options).load()
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return Run(expected, time.perf_counter() - began)


def _in_memory(bed: Bed, readers: int, count: int) -> Run:
    return handing_over.read(bed.spark, readers, count)


def drop_publications(bed: Bed) -> None:
    for (name,) in bed.database.execute("SELECT quote_ident(pubname) FROM pg_publication"):
        bed.database.execute(f"DROP PUBLICATION {name}")


def _jdbc(bed: Bed, readers: int, count: int) -> Run:
    source = bed.spark.read.format("jdbc").options(
        url=bed.jdbc_url, dbtable=ACCOUNTS, driver="org.postgresql.Driver", fetchsize=str(FETCH_SIZE)
    )
    if readers > 1:
        source = source.options(
            partitionColumn="aid", lowerBound="1", upperBound=str(count), numPartitions=str(readers)
        )
    frame = source.load()
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return Run(count, time.perf_counter() - began)
