"""What keeping the chunks costs: one reader with staging and without, everything else equal.

There is no option to do without staging. So a reader's part of a real batch is read here as a task reads it
(`handoff.read`), and beside it the same rows of the same snapshot, by the same reader and into the same output rows,
only not through the staging directory. Every batch is then written as an Arrow stream to a pipe whose other end
throws it away, as a task hands its rows to Spark. Spark itself would make the difference smaller.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import BufferedWriter

import pyarrow as pa
from pyarrow import ipc

from backfill import handoff
from backfill.handoff import SnapshotPart
from backfill.offset import InitialOffset
from backfill.opening import open_stream
from backfill.options import parse
from backfill.staging import Staging
from backfill.staging.manifest import Manifest, PlannedSplit
from backfill.stream import Stream
from benchmarks.bed import ACCOUNTS, Bed
from benchmarks.report import Comparison, Table, ratios, speeds
from benchmarks.rounds import Rounds, Run, take_turns

ROWS = 1_000_000
WITH = "with staging"
WITHOUT = "without staging"
AT_LEAST = 0.85


def run(bed: Bed, rows: int | None, rounds: Rounds) -> Iterator[Table]:
    bed.fill(rows or ROWS)
    options = {
        **bed.database.options,
        "dbtable": ACCOUNTS,
        "stateDir": str(bed.fresh_folder() / "state"),
        "startupMode": "snapshot",
        "numPartitions": "1",
    }
    stream = open_stream(parse(options, streaming=True))
    try:
        end = stream.latest_offset(InitialOffset(), None)
        (part,) = stream.parts(InitialOffset(), end)
        if not isinstance(part, SnapshotPart):
            raise TypeError(f"not a part of a snapshot: {part!r}")
        results = take_turns(
            {
                WITHOUT: lambda: _read(_direct(stream, part), stream.rows.schema),
                WITH: lambda: _read(_staged(bed, stream, part), stream.rows.schema),
            },
            rounds,
        )
    finally:
        stream.close()
    yield speeds("Staging: speed of one reader, without Spark", results)
    yield ratios("Staging: ratio", results, [Comparison(WITH, WITHOUT, AT_LEAST)])


def _direct(stream: Stream, part: SnapshotPart) -> Iterator[pa.RecordBatch]:
    rows = stream.rows
    for batch in stream.reader().read(part.token, part.split.ranges):
        yield rows.snapshot_rows(batch, part.chunk.epoch)


def _staged(bed: Bed, stream: Stream, part: SnapshotPart) -> Iterator[pa.RecordBatch]:
    # A directory of its own: in the stream's own one a staged chunk would end the snapshot for the other runs.
    files = Staging((bed.fresh_folder() / "staging").as_uri()).of_batch(part.chunk.epoch.number)
    manifest = Manifest((PlannedSplit(part.split),))
    files.keep_manifest(manifest)
    [name] = manifest.chunks
    return handoff.read(replace(part, chunk=replace(part.chunk, files=files, name=name)), stream.reader(), stream.rows)


def _read(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Run:
    began = time.perf_counter()
    rows = 0
    with _nobody() as sink, ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            rows += batch.num_rows
    return Run(rows, time.perf_counter() - began)


@contextmanager
def _nobody() -> Iterator[BufferedWriter]:
    """A pipe whose other end is read by a thread that throws everything away."""
    out, into = os.pipe()

    def throw_away() -> None:
        while os.read(out, 1 << 20):
            pass
        os.close(out)

    reader = threading.Thread(target=throw_away)
    reader.start()
    with os.fdopen(into, "wb") as sink:
        yield sink
    reader.join()
