"""A program that ends what a process has started once that process has ended, in whatever way, even by SIGKILL.

A test process ends its children when a test is over. If it is killed in the middle of one, Sparks that wait for a
step, hosts of a cluster and the like would stay. They are known by a variable that they have inherited. Servers and
containers have guards of their own, which `unguarded` leaves alone.

    python orphans.py VALUE    waits for its standard input to end
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import time
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE = "BACKFILL_TEST_PROCESS"

GRACE = 60.0
"""Seconds for the kernel to end what was killed."""


def guard() -> str:
    """Makes all that this process starts from now on end with it; returns the variable's value, to `end` it earlier."""
    value = secrets.token_hex(8)
    command = [sys.executable, "-I", __file__, value]
    reading, _held = os.pipe()  # The other end is closed with this process, and by nothing else.
    stdin = [(os.POSIX_SPAWN_DUP2, reading, 0)]
    # In a session of its own, or Ctrl-C would end the guard together with us.
    os.posix_spawn(sys.executable, command, os.environ, file_actions=stdin, setsid=True)
    os.close(reading)
    os.environ[VARIABLE] = value
    return value


def unguarded() -> dict[str, str]:
    """The environment of a program that has to outlive this process, because it clears up after it."""
    return {name: value for name, value in os.environ.items() if name != VARIABLE}


def orphans(value: str) -> Iterator[psutil.Process]:
    """The processes that have inherited this value."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(VARIABLE) == value and process.status() != psutil.STATUS_ZOMBIE:
                yield process


def end(value: str) -> None:
    """Ends the processes that have inherited this value."""
    deadline = time.monotonic() + GRACE
    # Again, because one may have been born while its siblings were counted.
    while (found := list(orphans(value))) and time.monotonic() < deadline:
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, timeout=0.5)


def main(value: str) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    end(value)


if __name__ == "__main__":
    main(sys.argv[1])
