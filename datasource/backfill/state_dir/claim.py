"""One query at a time uses a state directory.

Two queries on one directory would share the slot, and each would take the other's staged chunks for its own. It happens
easily: Spark starts a process of its own for each `start()`, also if both are called on one DataFrame.

So the driver's process holds a lock of the kernel on a file in the directory. The lock ends with the process, however
that ends; a query that is started again waits until the process before it has ended.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, TextIO

from backfill.errors import StateBusyError, StateError
from backfill.state_dir.file_lock import hold
from backfill.wording import unusable

FILE: Final = "claim"
PATIENCE: Final = 10.0
"""How many seconds a process may take to end once it was told to. A call to the database is finished first."""


def claim(folder: Path, *, patience: float = PATIENCE) -> TextIO:
    """A file that holds the claim until it is closed or this process ends; StateBusyError names the process with it.

    The claim is that of the process, not of the caller: see `file_lock.hold`.
    """
    path = folder / FILE
    try:
        file = hold(path, patience=patience)
        if file is not None:
            _sign(file)
    except OSError as error:
        raise StateError(unusable("stateDir", "written", error)) from error
    if file is None:
        raise StateBusyError(
            f"stateDir {folder} is used by another query (process {_holder(path)}), or twice by this one, as when a "
            "stream is joined with itself, or a statement names a table of Spark's catalog twice. Stop the other "
            "query (SparkSession.stop() does not), or load() the table for each use with its own stateDir"
        )
    return file


def _sign(file: TextIO) -> None:
    """Writes into the file which process has it; closes it again if the disk has no room for that."""
    try:
        file.truncate(0)
        os.write(file.fileno(), str(os.getpid()).encode())
    except OSError:
        file.close()
        raise


def _holder(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8") or "unknown"
    except OSError:
        return "unknown"
