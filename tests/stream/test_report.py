"""What a stream tells of itself."""

from __future__ import annotations

import pytest

from backfill.options import OnExistingState
from backfill.upstream.lag import Lag
from tests.simulator.harness import Spark
from tests.simulator.upstream import SimulatedUpstream
from tests.stream.scenario import KEYS, StartQuery, caught_up, delete, move, step, update


def test_the_report_tells_how_far_the_stream_is(start: StartQuery) -> None:
    spark = start(KEYS[:4])
    assert spark.stream().report() == {"table": "public.t", "phase": "starting"}
    step(spark)
    assert spark.stream().report() == {
        "table": "public.t",
        "phase": "snapshot",
        "snapshot_rows": 2,
        "vnodes": 1,
        "vnodes_completed": 0,
        "changes_passed_on": 0,
        "changes_held_back": 0,
        "changes_counted_since": "1970-01-01T00:00:01.000+00:00",
        "lag_bytes": 0,
    }
    step(spark)
    done = spark.stream().report()
    assert (done["phase"], done["vnodes_completed"], done["snapshot_rows_left"]) == ("changes", 1, 0)


def test_changes_are_counted_once_each_also_over_a_crash(start: StartQuery) -> None:
    """A moved row is one change, whichever of its halves go forward; a batch that is run again is not counted again."""
    spark = start(KEYS[1:9])
    step(spark)
    update(spark, KEYS[1])
    update(spark, KEYS[7])
    move(spark, KEYS[2], KEYS[0])
    move(spark, KEYS[6], KEYS[19])
    step(spark, 4)
    assert counts(spark) == (2, 2)
    delete(spark, KEYS[0])
    spark.plan(2)
    spark.read()
    assert counts(spark) == (3, 2)
    spark.crash()
    assert len(step(spark)) == 3
    step(spark)
    assert counts(spark) == (3, 2)
    spark.crash()
    spark.kept_counts = None
    delete(spark, KEYS[1])
    while step(spark):
        pass
    assert counts(spark) == (1, 0)


def test_changes_of_a_batch_that_a_new_checkpoint_plans_anew_are_counted(start: StartQuery) -> None:
    spark = caught_up(start(KEYS[:4]))
    update(spark, KEYS[0])
    spark.plan(2)
    spark.parts()
    assert counts(spark) == (1, 0)
    spark.begin_anew(OnExistingState.RESUME)
    for _ in range(5):
        update(spark, KEYS[1])
    assert len(caught_up(spark).sink.rows) == 4
    assert counts(spark) == (7, 0)  # One is counted twice: it was first planned for a sink that never had it.


def test_other_processes_learn_until_when_the_output_is_complete(
    start: StartQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SimulatedUpstream, "lag", lambda *_: Lag(complete_until=5_000_000))
    spark = start(KEYS[:4])
    step(spark)
    assert spark.kept_counts is not None
    assert spark.kept_counts.complete_until != 5_000_000
    while step(spark):
        pass
    assert spark.kept_counts.complete_until == 5_000_000


def counts(spark: Spark) -> tuple[object, object]:
    report = spark.stream().report()
    return report["changes_passed_on"], report["changes_held_back"]
