"""The first Arrow array that a process makes of anything imports pandas, where it is installed: a third of a second."""

from __future__ import annotations

import sys
import threading
from functools import cache
from importlib.abc import MetaPathFinder

import pyarrow as pa


@cache
def head_start() -> threading.Thread:
    """Lets a thread of its own pay for that, once in a process, while the database is waited for.

    Arrays made in the meantime are made without pandas, which nothing here has any use for.
    """
    thread = threading.Thread(target=pa.array, args=[[0]], name="backfill-head-start", daemon=True)
    thread.start()
    return thread


class _WithoutPandas(MetaPathFinder):
    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def without_pandas() -> None:
    """For a process in which nobody else uses Arrow: spares it pandas, which takes 30 MB as well.

    Spark starts such a process for each stream. Arrow looks for pandas once, and then does without it.
    """
    finder = _WithoutPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)
