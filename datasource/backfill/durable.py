"""Makes files and their names survive a loss of power, where the file system can do that.

A file that was not synced may afterwards be empty, cut short or full of zeros, although it has its name. If its folder
was not synced, the name may be missing, or lead to the file that had it before.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Final

_UNKNOWN: Final = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EBADF, errno.EPERM, errno.EACCES)
"""The errors of a file system that cannot sync, as some that show an object store; and of Windows for a file that was
opened for reading. Some of these cannot open one for writing.
"""


def sync_file(path: Path) -> None:
    """Makes the content of this file durable, where its file system can."""
    try:
        _sync(path)
    except OSError as error:
        if error.errno not in _UNKNOWN:
            raise


def sync_names(folder: Path) -> None:
    """Makes the names in this folder durable, where its file system can."""
    with suppress(OSError):  # Not every file system can sync a folder, and the files are written.
        _sync(folder)


def make_folder(folder: Path) -> None:
    """Makes the folder and its parents where they are missing, with durable names."""
    missing = list(takewhile(lambda item: not item.exists(), (folder, *folder.parents)))
    folder.mkdir(parents=True, exist_ok=True)
    for made in missing:
        sync_names(made.parent)


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
