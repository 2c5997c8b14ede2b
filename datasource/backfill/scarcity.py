"""Errors that say what the system gives a process too little of: memory, threads, open files."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from backfill.errors import DriverError

_NO_MEMORY: Final = ("failed to map segment from shared object", "cannot map zero-fill pages", "Cannot allocate memory")
"""The C library's words where a package's compiled part, or a library that this needs, does not fit into memory."""

_NO_THREAD: Final = ("can't start new thread", "Failed to launch worker thread")
"""Python's and Arrow's words where a thread cannot be started."""

_NO_FILE: Final = (errno.EMFILE, errno.ENFILE)


def short_of_memory(found: str) -> DriverError:
    return DriverError(
        f"this Python process has too little memory: {found}. If Spark limits it (spark.executor.pyspark.memory for "
        "all tasks of an executor together, spark.sql.planner.pythonExecution.memory for the stream's process on the "
        "driver), allow at least 512m for each, or leave the setting out"
    )


def scarcity(error: Exception, shown: str = "") -> DriverError | None:
    """The error that says what the process has to be given more of; None where `error` has another cause.

    `shown`: what to show in place of the error's own text, if that is not to be shown.
    """
    text = str(error) or type(error).__name__
    found = shown or text
    if isinstance(error, MemoryError):
        return short_of_memory(found)
    if isinstance(error, ImportError):
        # Some packages list all that they have tried.
        lines = [line for line in text.splitlines() if any(words in line for words in _NO_MEMORY)]
        return short_of_memory(lines[0]) if lines else None
    if any(words in text for words in _NO_THREAD):
        return DriverError(
            f"this Python process may not start another thread: {found}. Allow its account or container more "
            "processes (ulimit -u, pids.max), and the process more memory if that is limited, since each thread "
            "takes some"
        )
    if isinstance(error, OSError) and error.errno in _NO_FILE:
        return DriverError(f"this Python process may not open more files: {found}. Allow it more (ulimit -n)")
    return None


@contextmanager
def importing() -> Iterator[None]:
    """Where an import in the block fails because the process lacks something, raises the error of `scarcity`."""
    try:
        yield
    except Exception as error:
        lacking = scarcity(error)
        if lacking is None:
            raise
        raise lacking from None
