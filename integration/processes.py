"""Programs that tests start, and their end."""

from __future__ import annotations

import contextlib
import subprocess

import psutil


def kill(process: subprocess.Popen[bytes]) -> None:
    """Sends SIGKILL to a child and everything below it, as if at one instant; collects the child.

    May be called twice, and after any of them have ended by themselves.
    """
    try:
        if process.poll() is None:
            top = psutil.Process(process.pid)
            top.suspend()  # so that nothing is born while its siblings are being counted
            for each in (top, *top.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
    finally:
        process.kill()
        process.wait()
