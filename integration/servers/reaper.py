"""The program that removes the containers of a process which has been killed.

It waits for its standard input to end. The process that the containers belong to holds the other end of that pipe. If
it ends in order, it removes them itself and says so; otherwise it says nothing.

    python reaper.py SESSION
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

DONE = b"done"
SETTLE = 2.0
"""Seconds in which an engine has carried out what the process had asked for when it was killed."""


@contextmanager
def waiting() -> Iterator[None]:
    """Sees to it that the containers of this process are removed, whatever happens to it inside the block."""
    from testcontainers.core.labels import SESSION_ID  # noqa: PLC0415 - see container.py

    from integration import orphans  # noqa: PLC0415 - the program is run without this package

    with subprocess.Popen(
        [sys.executable, "-I", __file__, SESSION_ID],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=orphans.unguarded(),
        start_new_session=True,  # or Ctrl-C would end it together with us
    ) as program:
        yield
        program.communicate(DONE)


def remove(session: str) -> None:
    """Remove the containers that testcontainers has started for `session`, with their volumes."""
    from testcontainers.core.docker_client import DockerClient  # noqa: PLC0415 - seldom needed, and slow to import
    from testcontainers.core.labels import LABEL_SESSION_ID  # noqa: PLC0415

    containers = DockerClient().client.containers
    for left in containers.list(all=True, filters={"label": f"{LABEL_SESSION_ID}={session}"}):
        left.remove(force=True, v=True)


def main(session: str) -> None:
    if sys.stdin.buffer.read() != DONE:
        time.sleep(SETTLE)
        remove(session)


if __name__ == "__main__":
    main(*sys.argv[1:])
