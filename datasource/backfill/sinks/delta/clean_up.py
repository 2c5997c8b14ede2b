"""Commits after which the log was cleaned up by somebody else as well.

After a commit, `deltalake` (1.6) removes the part of the log that has become too old, and fails where another writer
does so at the same time and is faster. The commit itself is done by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def though_cleaned_up(is_done: Callable[[], bool]) -> Iterator[None]:
    """For a block that commits: passes over a file that is gone, if what was to be committed is there all the same.

    In that case, what follows the commit in the block has not been run.
    """
    try:
        yield
    except FileNotFoundError:
        if not is_done():
            raise
