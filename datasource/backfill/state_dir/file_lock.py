"""A lock on a file, which the kernel takes back when the process ends, however that ends."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import TextIO

try:
    import fcntl
except ImportError:  # On Windows there is none, and nobody is kept out.
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger("backfill")


def hold(path: Path, *, patience: float, interval: float = 0.1) -> TextIO | None:
    """The file at this path, locked against other processes until it is closed; None if one keeps it for `patience`.

    The lock is of the process, not of the caller: this process gets it as often as it asks, and loses it when it closes
    any file that it has opened at this path.
    """
    give_up = time.monotonic() + patience
    while True:
        file = path.open("a+")
        if locked(file) and _is_at(path, file):
            return file
        file.close()
        if time.monotonic() > give_up:
            return None
        time.sleep(interval)


def _is_at(path: Path, file: TextIO) -> bool:
    """Whether the path still leads to this file: `drop` removes it, also while others wait for it."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:  # It is gone; a network file system may say so with another error.
        return False


def locked(file: TextIO) -> bool:
    """Whether this process has the lock on the file now; it ends when the file is closed, or with the process."""
    if fcntl is None:
        return True
    try:
        # Not flock: this kind works on network file systems as well.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError as error:
        logger.warning(
            "the file system of stateDir has no locks, so a second query on it will not be noticed: %s", error
        )
    return True
