"""What takes long to import is imported while the process waits for something else, or not at all.

Pandas: the first Arrow array of a process imports it, where it is installed, which takes a third of a second. The state
store and a database's driver together take a fifth.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from importlib.abc import MetaPathFinder

import pyarrow as pa


@cache
def head_start() -> threading.Thread:
    """Has pandas imported in a thread of its own, once in a process, while the process waits for the database.

    Arrays that are made in the meantime are made without pandas; nothing here needs it.
    """
    thread = threading.Thread(target=pa.array, args=[[0]], name="backfill-head-start", daemon=True)
    thread.start()
    return thread


class _WithoutPandas(MetaPathFinder):
    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def without_pandas() -> None:
    """Keeps Arrow from importing pandas, which takes 30 MB as well: for a process in which nobody else uses Arrow.

    Spark starts such a process for each stream. Arrow looks for pandas only once.
    """
    finder = _WithoutPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)


def import_ahead(given: Mapping[str, str]) -> threading.Thread:
    """Imports in a thread what opening a stream with these options needs, while Spark prepares its query."""
    adapter = "delta" if given.get("path") else "postgres"
    modules = ("backfill.opening", f"backfill.upstream.{adapter}")
    thread = threading.Thread(target=partial(_import, modules), name="backfill-import-ahead", daemon=True)
    thread.start()
    return thread


def _import(modules: tuple[str, ...]) -> None:
    for module in modules:
        with suppress(Exception):  # Opening the stream says in words what is missing.
            import_module(module)
