"""Commits after which the log was cleaned up by somebody else as well.

After a commit `deltalake` (1.6) removes what has become too old of the log, and fails where another writer does so at
the same time and was faster. The commit itself is done then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def though_cleaned_up(is_done: Callable[[], bool]) -> Iterator[None]:
    """For a block that commits: passes over a file that is gone, if what was to be committed is there all the same.

    What stood after the commit in the block was not run then.
    """
    try:
        yield
    except FileNotFoundError:
        if not is_done():
            raise
