"""The stream reader as Spark makes it and sends it around, before it opens a stream."""

from __future__ import annotations

import pickle

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from backfill.errors import OptionsError
from backfill.spark.stream_reader import BackfillStreamReader

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


def test_wrong_options_are_reported_by_the_call_that_needs_them() -> None:
    reader = BackfillStreamReader({**GIVEN, "vnodeCount": "many"}, COLUMNS)
    for _ in range(2):
        with pytest.raises(OptionsError, match="vnodeCount is 'many'"):
            reader.getDefaultReadLimit()
