"""The stream reader as Spark makes it and sends it around, before it opens a stream."""

from __future__ import annotations

import json
import pickle

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StructField, StructType

from backfill.epoch import Epoch
from backfill.errors import OffsetError, OptionsError, SchemaChangedError
from backfill.offset import Barrier, InitialOffset, Offset, to_json
from backfill.progress import Completed, Finished, Frontier, InProgress
from backfill.rows import RowFormat
from backfill.spark import stream_reader
from backfill.spark.offsets import Offsets
from backfill.spark.stream_reader import BackfillStreamReader
from backfill.upstream import TableSchema

COLUMNS = StructType([StructField("id", LongType())])
GIVEN = {"url": "postgresql://app@db/shop", "dbtable": "orders", "stateDir": "/state"}


def test_options_are_read_once_when_they_are_needed_and_are_not_sent_around() -> None:
    reader = BackfillStreamReader(GIVEN, COLUMNS)
    assert "_options" not in vars(reader)
    first = reader._options
    assert reader._options is first
    sent: BackfillStreamReader = pickle.loads(pickle.dumps(reader))  # noqa: S301 - our own bytes
    assert "_options" not in vars(sent)
    assert sent._options == first


def test_wrong_options_are_reported_by_the_first_call_after_which_spark_ends_all_sources() -> None:
    reader = BackfillStreamReader({**GIVEN, "vnodeCount": "many"}, COLUMNS)
    reader.prepareForTriggerAvailableNow()
    limit = reader.getDefaultReadLimit()
    for _ in range(2):
        with pytest.raises(OptionsError, match="vnodeCount is 'many'"):
            reader.latestOffset(reader.initialOffset(), limit)


class Refused:
    """A stream whose columns are not those that Spark was told."""

    def __init__(self) -> None:
        self.closed = 0
        self.rows = RowFormat(
            TableSchema("t", pa.schema([("id", pa.string())]), ("id",), ("id",)), mark_unchanged=False
        )

    def close(self) -> None:
        self.closed += 1


def test_a_stream_that_is_refused_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else would end its session: the process stays as long as the query is not stopped."""
    refused = Refused()
    monkeypatch.setattr("backfill.opening.open_stream", lambda _: refused)
    reader = BackfillStreamReader(GIVEN, COLUMNS)
    with pytest.raises(SchemaChangedError):
        reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert refused.closed == 1
    reader.stop()
    assert refused.closed == 1


def test_an_offset_that_comes_back_from_spark_is_not_read_again() -> None:
    kept, known = Offsets(), [at_epoch(number) for number in range(4)]
    given = [json.dumps(kept.give(offset)) for offset in known]
    for number in (2, 3):
        assert kept.take(json.loads(given[number])) is known[number]
    taken = kept.take(json.loads(given[0]))
    assert taken == known[0]
    assert kept.take(json.loads(given[0])) is taken


def test_an_offset_that_is_none_is_refused_each_time() -> None:
    kept = Offsets()
    for _ in range(2):
        with pytest.raises(OffsetError, match=r"an offset without a version.* fresh checkpointLoc"):
            kept.take({"epoch": 1})


def at_epoch(number: int) -> Barrier:
    progress = Frontier.at_start((("1",), ("2",))).advanced({0: Completed(number), 1: InProgress(("1 b",), 5)})
    return Barrier("s", (("slot", "x"),), Epoch(number, "p", 1, 1), progress)


class Clock:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 3))
        self.now += seconds


def rests(monkeypatch: pytest.MonkeyPatch, looks: list[tuple[float, bool]]) -> list[float]:
    """Returns for how long a stream rests after each of these looks, which say how long they take and whether they find
    something.
    """
    clock, left = Clock(), iter([*looks, (0.0, True)])

    class Looking:
        def latest_offset(self, start: Offset, _: int | None) -> Offset:
            seconds, finds = next(left)
            clock.now += seconds
            return Barrier("s", (), Epoch(1, "1", 1, 1), Finished(0, 0)) if finds else start

    monkeypatch.setattr(stream_reader, "time", clock)
    reader = BackfillStreamReader(GIVEN, COLUMNS)
    monkeypatch.setattr(reader, "_opened", Looking)
    for _ in range(len(looks) + 1):
        reader.latestOffset(to_json(InitialOffset()), ReadAllAvailable())
    return clock.slept[1:]


def test_looking_for_nothing_takes_a_fifth_of_the_time_at_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rests(monkeypatch, [(0.001, False)] * 3) == [0.1, 0.1, 0.1]
    assert rests(monkeypatch, [(0.2, False)] * 6) == [0.1, 0.2, 0.4, 0.8, 0.8, 0.8]
    assert rests(monkeypatch, [(120.0, False)] * 9)[-2:] == [5.0, 5.0]


def test_what_is_found_ends_the_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [(5.0, False), (0.001, False), (0.2, False), (0.2, False), (0.2, True), (0.2, False)]
    assert rests(monkeypatch, looks) == [0.1, 0.1, 0.2, 0.4, 0.0, 0.1]
