"""The program that removes a sandbox: waits for its standard input to end, then clears up.

The process that the sandbox belongs to holds the other end of that pipe, so the input ends when that process closes it,
and also when it is killed. Processes are found by their working folder, which every process in a sandbox has inside it:
a PostgreSQL in mid-start, its backends after the postmaster's death, an initdb.

    python guard.py FOLDER UID GID
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator

GRACE = 60.0
"""Seconds for a server to shut down by itself, and then as many for the kernel to end what was killed."""

IPC_RMID = 0


def residents(folder: Path) -> list[psutil.Process]:
    """The processes whose working folder is `folder` or inside it."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            # A folder that is already removed is shown with " (deleted)" behind it.
            if Path(process.cwd()).is_relative_to(folder):
                found.append(process)
    return found


def end_all(folder: Path, number: signal.Signals) -> list[psutil.Process]:
    """Send a signal to the residents and wait; returns those that are left."""
    deadline = time.monotonic() + GRACE
    while (found := residents(folder)) and time.monotonic() < deadline:
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)
        psutil.wait_procs(found, timeout=0.5)
    return found


def shared_memory(folder: Path) -> Iterator[int]:
    """The System V segments that killed servers have left: line 7 of postmaster.pid is "key id"."""
    for lock in folder.glob("*/data/postmaster.pid"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            yield int(lock.read_text().splitlines()[6].split()[1])


@contextlib.contextmanager
def acting_as(uid: int, gid: int) -> Iterator[None]:
    """Acts as this account: root in a container may not see the working folder of another account's process."""
    us = os.geteuid(), os.getegid()
    os.setegid(gid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(us[0])
        os.setegid(us[1])


def clear(folder: Path, uid: int, gid: int) -> int:
    """Ends everything in the folder, then removes it; returns 0 if nothing is left."""
    with acting_as(uid, gid):
        # SIGQUIT is PostgreSQL's immediate shutdown: quick, and it gives back its shared memory.
        end_all(folder, signal.SIGQUIT)
        left = end_all(folder, signal.SIGKILL)
        for segment in shared_memory(folder):
            ctypes.CDLL(None).shmctl(segment, IPC_RMID, None)
    shutil.rmtree(folder, ignore_errors=True)
    for process in left:
        sys.stderr.write(f"still running: {process}\n")
    if folder.exists():
        sys.stderr.write(f"not removed: {folder}\n")
    return int(bool(left) or folder.exists())


def main(folder: str, uid: str, gid: str) -> int:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    return clear(Path(folder), int(uid), int(gid))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
