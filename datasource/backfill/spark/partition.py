"""A reader's partitions, when they come back to it in a task."""

from __future__ import annotations

from typing import Final, TypeVar

from pyspark.sql.datasource import InputPartition

from backfill.errors import OptionsError

P = TypeVar("P", bound=InputPartition)

TWICE: Final = (
    "Spark gave a read of this source the plan of another read, as it does if one statement names a table of Spark's "
    "catalog twice, once as a STREAM. Read it with readStream.table() and read.table() and join the DataFrames, or "
    "make a table for each use"
)


def own(partition: InputPartition, kind: type[P]) -> P:
    """The partition, which is one of this reader's; raises OptionsError if it is another reader's."""
    if not isinstance(partition, kind):
        raise OptionsError(TWICE)
    return partition
