"""A table that is truncated in the midst of a stream."""

from __future__ import annotations

import pytest

from backfill.errors import TruncateError
from backfill.options import OnTruncate
from tests.simulator.database import TRUNCATION, Change
from tests.stream.scenario import KEYS, StartQuery, caught_up, changes_of, insert, row, step


def test_a_truncation_ends_the_stream_and_says_what_to_set(start: StartQuery) -> None:
    spark = start(KEYS[:2])
    while step(spark):
        pass
    spark.database.commit([TRUNCATION])
    spark.plan()
    with pytest.raises(TruncateError, match=r"public\.t was truncated.* onTruncate=emit .* onTruncate=ignore"):
        spark.read()


def test_a_truncation_before_anything_was_emitted_is_no_matter(start: StartQuery) -> None:
    spark = start([], vnodes=1)
    spark.plan(logged=False)
    spark.database.commit([TRUNCATION, Change(None, row(KEYS[0]))])
    assert step(spark) == [("insert", KEYS[0], "new")]


def test_a_truncation_is_emitted_where_that_was_asked_for(start: StartQuery) -> None:
    spark = start(KEYS[:6])
    spark.on_truncate = OnTruncate.EMIT
    step(spark)
    spark.database.commit([TRUNCATION, Change(None, row(KEYS[0])), Change(None, row(KEYS[5]))])
    found = step(spark)
    assert [(kind, value) for kind, _, value in found] == [("truncate", None), ("insert", "new"), ("insert", "new")]


def test_a_truncation_is_passed_over_where_that_was_asked_for(start: StartQuery) -> None:
    spark = start(KEYS[:2])
    spark.on_truncate = OnTruncate.IGNORE
    while step(spark):
        pass
    spark.database.commit([TRUNCATION, Change(None, row(KEYS[9]))])
    spark.plan()
    assert changes_of(spark.read()) == [("insert", KEYS[9], "new")]


def test_rows_that_were_read_after_the_present_at_which_a_query_stops_are_reported_after_a_truncation(
    start: StartQuery,
) -> None:
    """These rows are in a chunk that was lost in a crash and read later, and the truncation takes them away again."""
    spark = start(KEYS[:3], vnodes=1)
    spark.on_truncate = OnTruncate.EMIT
    spark.plan(None)
    spark.crash()
    spark.database.commit([TRUNCATION, Change(None, row(KEYS[0]))])
    spark.stream().stop_at_present()
    insert(spark, KEYS[1])
    caught_up(spark)
    spark.crash()
    caught_up(spark)
    assert spark.sink.rows == spark.database.latest()


def test_a_truncation_that_ended_the_stream_is_not_emitted_short_of_rows_that_were_read_after_it(
    start: StartQuery,
) -> None:
    """Otherwise the batches after it would take rows inserted since then for rows that the sink has."""
    spark = start(KEYS[:3], vnodes=1)
    spark.plan(None)
    spark.crash()
    spark.database.commit([TRUNCATION])
    for key in KEYS[:3]:
        insert(spark, key)
    spark.commit(spark.read())
    spark.plan(1)
    with pytest.raises(TruncateError, match="onTruncate=emit"):
        spark.read()
    spark.crash()
    spark.on_truncate = OnTruncate.EMIT
    with pytest.raises(TruncateError, match=r"public\.t was truncated.* Start over .* or set onTruncate=ignore"):
        spark.read()
