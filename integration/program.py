"""What the demo, the benchmarks and the pictures have in common: how they begin, and that nothing is left of them."""

from __future__ import annotations

import os
import signal
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from integration import orphans

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def program(name: str) -> Iterator[Path]:
    """A temporary folder for a program that starts servers and Sparks; both are gone when the block ends.

    A Spark that is still starting when Ctrl-C comes would go on, and write into a folder that has been removed: so what
    runs is ended first. SIGTERM and the loss of the terminal are treated like Ctrl-C.
    """
    value = orphans.guard()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    forget_libpq_settings()
    with tempfile.TemporaryDirectory(prefix=f"backfill-{name}-") as folder:
        try:
            yield Path(folder)
        finally:
            orphans.end(value)


def forget_libpq_settings() -> None:
    """Takes libpq's variables out of the environment: whoever has PGSSLMODE=require there does not mean our servers."""
    if not os.environ.get("BACKFILL_TEST_DSN"):
        for name in [name for name in os.environ if name.startswith("PG")]:
            del os.environ[name]
