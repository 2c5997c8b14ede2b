"""A lack of memory or the like is told in words, and not as a traceback or as another problem."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator

import pyarrow as pa
import pytest

from backfill.adapters import needing
from backfill.errors import DriverError, OptionsError
from backfill.scarcity import scarcity
from backfill.spark.refusal import without_traceback, yielding_without_traceback

UNMAPPED = "libcrypto.so.3: failed to map segment from shared object"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "too little memory: MemoryError.*pyspark.memory"),
        (pa.ArrowMemoryError("malloc of size 64 failed"), "too little memory: malloc of size 64 failed"),
        (RuntimeError("can't start new thread"), "may not start another thread.*ulimit -u"),
        (
            pa.ArrowException("Unknown error: Failed to launch worker thread: Resource …"),
            "may not start another thread",
        ),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "may not open more files.*ulimit -n"),
        (
            ImportError("_duckdb.so: failed to map segment from shared object"),
            "too little memory: _duckdb.so: failed to",
        ),
        (ImportError(f"no wrapper\n- no module 'psycopg_c'\n- {UNMAPPED}"), rf"too little memory: - {UNMAPPED}\. "),
    ],
)
def test_what_a_process_lacks_crosses_into_spark_in_words(error: Exception, message: str) -> None:
    def lacking() -> Iterator[int]:
        yield 1
        raise error

    with pytest.raises(DriverError, match=message) as caught:
        without_traceback(lambda: list(lacking()))()
    assert "in lacking" not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(DriverError, match=message):
        list(yielding_without_traceback(lacking)())


def test_any_other_error_is_not_one_of_scarcity() -> None:
    assert scarcity(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))) is None
    assert scarcity(RuntimeError("the spool is closed")) is None
    assert scarcity(ImportError("libpq.so.5: cannot open shared object file")) is None


def test_a_package_that_does_not_fit_into_memory_is_not_taken_for_one_to_install() -> None:
    with pytest.raises(DriverError, match="memory"), needing("reading PostgreSQL", "postgres"):
        raise ImportError(UNMAPPED)
    with pytest.raises(OptionsError, match="pip install"), needing("reading PostgreSQL", "postgres"):
        raise ImportError("libpq.so.5: cannot open shared object file")


@pytest.mark.parametrize(("upstream", "package"), [("postgres", "psycopg"), ("delta", "deltalake")])
def test_an_adapter_that_does_not_fit_into_memory_says_so_where_spark_imports_it(upstream: str, package: str) -> None:
    """A task imports the adapter so, when Spark unpickles the reader."""
    code = NO_ROOM.format(package, UNMAPPED) + f"import backfill.upstream.{upstream}"
    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (
        f"backfill.errors.DriverError: this Python process has too little memory: {UNMAPPED}"
        in (failed.stderr.splitlines()[-1])
    )


NO_ROOM = """
import sys

class NoRoom:
    @staticmethod
    def find_spec(name, *_):
        if name == {0!r}:
            raise ImportError({1!r})

sys.meta_path.insert(0, NoRoom)
"""
