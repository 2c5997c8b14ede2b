"""What makes files and their names outlast the machine's loss of power, where the file system can do that.

A file that is not synced may be empty afterwards, cut short or full of zeros, though it has its name; and one whose
folder is not synced may be without the name, or that may lead to the file before.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Final

_UNKNOWN: Final = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EBADF, errno.EPERM, errno.EACCES)
"""How a file system answers that cannot do it, as some that show an object store; and Windows of a file that is read.

To open it for writing would be more than some of these can do.
"""


def sync_file(path: Path) -> None:
    """What is in this file is durable."""
    try:
        _sync(path)
    except OSError as error:
        if error.errno not in _UNKNOWN:
            raise


def sync_names(folder: Path) -> None:
    """The names in this folder are durable."""
    with suppress(OSError):  # Not every file system knows this of a folder, and the files are written.
        _sync(folder)


def make_folder(folder: Path) -> None:
    """Makes it, and those that it is in, where they are missing; their names are durable."""
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
