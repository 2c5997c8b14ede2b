"""Spark's calls, in the order in which Spark really makes them.

    initialOffset (several times) → latestOffset → partitions → read (tasks) → latestOffset → commit → partitions → …

After a restart with an unfinished batch `partitions` comes first, in a new process. `commit` comes while the *next*
batch is planned and never after the last one, so nothing depends on it: what `latestOffset` is given as its start has
been committed. `stop` is not called when a query is stopped; nothing depends on that either.

With several sources in a query, an error in `latestOffset` makes Spark end the processes of all. An error before the
first `latestOffset`, from `prepareForTriggerAvailableNow` or `getDefaultReadLimit`, leaves the processes of the others
running, with what they have opened. So these two open nothing and raise nothing.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from backfill import handoff
from backfill.errors import BackfillError
from backfill.offset import InitialOffset, to_json
from backfill.options import Options, parse
from backfill.rows import RowFormat
from backfill.spark.head_start import head_start, import_ahead, without_pandas
from backfill.spark.offsets import Offsets
from backfill.spark.partition import own
from backfill.spark.refusal import without_traceback, yielding_without_traceback
from backfill.spark.table_options import as_kept, of_table
from backfill.spark.types import as_expected, require_same, to_spark
from backfill.state_dir.claim import claim
from backfill.upstream import SnapshotReader

if TYPE_CHECKING:
    from backfill.stream import Stream

SHORTEST_REST: Final = 0.1
"""Seconds between two looks at an idle upstream: with the default trigger Spark asks every 11 ms."""

RESTS: Final = 4
"""After a look that found nothing the stream rests this many times as long as the look took.

The change log is that of all tables: while others are written to, each look of each stream decodes all of that again,
which may take the server a second. But a single look may be slow for another reason, as the first one is; so a rest is
at most twice as long as the one before.
"""

LONGEST_REST: Final = 5.0
"""The most seconds of such a rest."""

_RUNNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"


@dataclass
class StreamPartition(InputPartition):
    """One reader's part, with all that a task needs to read it."""

    part: handoff.Part
    reader: SnapshotReader
    rows: RowFormat

    def __repr__(self) -> str:
        return f"StreamPartition({self.part!r})"


class BackfillStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Cheap to make and to pickle: the stream behind it is opened by the first call that needs it."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._given = given
        self._schema = schema
        self._stream: Stream | None = None
        self._offsets = Offsets()
        self._claim: TextIO | None = None
        self._stops_at_present = False
        self._rest = 0.0
        self._rests_until = 0.0
        self._ahead = _prepare_runner(given) if _RUNNER in sys.orig_argv else None

    def __reduce__(self) -> tuple[type[BackfillStreamReader], tuple[Mapping[str, str], StructType]]:
        return BackfillStreamReader, (self._given, self._schema)

    @cached_property
    def _options(self) -> Options:
        """The options, validated. Not in `__init__`: an error raised there is buried under one of Spark's (4.3.0)."""
        return as_kept(parse(of_table(self._schema, self._given), streaming=True), self._schema)

    def _opened(self) -> Stream:
        if self._stream is None:
            if self._ahead is not None:
                # While the import of a module is failing there, Python says here only that the module lacks names.
                self._ahead.join()
            # Tasks import this module too, and need no state store.
            from backfill.opening import open_stream  # noqa: PLC0415

            with ExitStack() as stack:
                stream = stack.enter_context(closing(open_stream(self._options)))
                require_same(self._schema, to_spark(stream.rows.schema))
                self._claim = stack.enter_context(claim(Path(self._options.state_dir)))
                if self._stops_at_present:
                    stream.stop_at_present()
                stack.pop_all()
            self._stream = stream
        return self._stream

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Called once, before any offset is asked for. The present is the moment in which the stream is opened."""
        self._stops_at_present = True

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        try:
            return ReadMaxRows(self._options.stream.max_rows)
        except BackfillError:
            return ReadAllAvailable()  # `latestOffset` says what is wrong.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return to_json(InitialOffset())

    @without_traceback
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        time.sleep(max(0.0, self._rests_until - time.monotonic()))
        before, began = self._offsets.take(start), time.monotonic()
        after = self._opened().latest_offset(before, _max_rows(limit))
        now = time.monotonic()
        self._rest = _rest_after(now - began, self._rest) if after == before else 0.0
        self._rests_until = now + self._rest
        return self._offsets.give(after)

    @without_traceback
    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Figures for `StreamingQueryProgress`, not an offset."""
        return None if self._stream is None else self._stream.report()

    @without_traceback
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        stream = self._opened()
        reader, rows = stream.reader(), stream.rows
        parts = stream.parts(self._offsets.take(start), self._offsets.take(end))
        return [StreamPartition(part, reader, rows) for part in parts]

    @yielding_without_traceback
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in a task."""
        found = own(partition, StreamPartition)
        head_start()
        yield from as_expected(handoff.read(found.part, found.reader, found.rows), self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: see the module's description."""

    def stop(self) -> None:
        if self._stream is not None:
            self._stream.close()
        if self._claim is not None:
            self._claim.close()


def _rest_after(look: float, before: float) -> float:
    """Seconds to rest after a look that found nothing and took `look` seconds; the rest before it took `before`."""
    return max(SHORTEST_REST, min(RESTS * look, 2 * before, LONGEST_REST))


def _max_rows(limit: ReadLimit) -> int | None:
    match limit:
        case ReadMaxRows(max_rows=rows):
            return rows
        case ReadAllAvailable():
            return None
        case _:
            raise NotImplementedError(f"Spark asked for {type(limit).__name__}, which this source never offered")


def _prepare_runner(given: Mapping[str, str]) -> threading.Thread:
    """Prepares the process that Spark starts for a stream: SIGTERM, with which Spark ends it, is to close its sessions.

    Returns the thread that imports what opening the stream needs.
    """
    without_pandas()  # First: Arrow passes over whatever is raised while it looks for pandas, also SystemExit.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    return import_ahead(given)
