"""A process that writes a state file, and is killed while it does."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path


def run_and_kill(program: str, path: Path, after: float, *, stores: bool) -> int:
    """Runs a program that writes, kills it, and returns the last number that it said was stored.

    It is killed `after` so many seconds: from before it opens the file on, or, with `stores`, from when it has stored
    something. It is Python, is given the path, and prints 0 at first and then each number once that is stored.
    """
    with subprocess.Popen([sys.executable, "-c", program, path], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        printed = writer.stdout.readline() + (writer.stdout.readline() if stores else "")
        time.sleep(after)
        writer.kill()
        printed += writer.stdout.read()
    # The kill may have cut the last line short.
    whole = [line for line in printed.splitlines(keepends=True) if line.endswith("\n")]
    return int(whole[-1])
