"""What a process lacks is said, and neither shown as a traceback nor taken for something else."""

from __future__ import annotations

import errno
import os
import traceback
from collections.abc import Iterator

import pyarrow as pa
import pytest

from backfill.errors import DriverError
from backfill.scarcity import scarcity
from backfill.spark.refusal import without_traceback, yielding_without_traceback


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (MemoryError(), "memory as it needs: MemoryError.*pyspark.memory"),
        (pa.ArrowMemoryError("malloc of size 64 failed"), "memory as it needs: malloc of size 64 failed"),
        (RuntimeError("can't start new thread"), "threads as it needs.*ulimit -u"),
        (pa.ArrowException("Unknown error: Failed to launch worker thread: Resource …"), "threads as it needs"),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "as many files as it needs.*ulimit -n"),
    ],
)
def test_what_a_process_lacks_crosses_into_spark_in_words(error: Exception, told: str) -> None:
    def lacking() -> Iterator[int]:
        yield 1
        raise error

    with pytest.raises(DriverError, match=told) as caught:
        without_traceback(lambda: list(lacking()))()
    assert "in lacking" not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(DriverError, match=told):
        list(yielding_without_traceback(lacking)())


def test_any_other_error_is_none_of_a_lack() -> None:
    assert scarcity(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))) is None
    assert scarcity(RuntimeError("the spool is closed")) is None
