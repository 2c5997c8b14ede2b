"""The first Arrow array that a process makes of anything imports pandas, where it is installed: a third of a second."""

from __future__ import annotations

import threading
from functools import cache

import pyarrow as pa


@cache
def head_start() -> threading.Thread:
    """Lets a thread of its own pay for that, once in a process, while the database is waited for.

    Arrays made in the meantime are made without pandas, which nothing here has any use for.
    """
    thread = threading.Thread(target=pa.array, args=[[0]], name="backfill-head-start", daemon=True)
    thread.start()
    return thread
