"""What a killed test process has started ends with it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]

OWNER = """
    import subprocess, sys, time
    from integration import orphans
    orphans.guard()
    mother = "import subprocess, sys, time; c = [sys.executable, '-c', 'import time; time.sleep(1000)']; "
    mother += "print(subprocess.Popen(c, start_new_session=True).pid, flush=True); time.sleep(1000)"
    subprocess.Popen([sys.executable, "-c", mother], start_new_session=True)
    time.sleep(1000)
"""
"""A process that starts another, which starts a third, none of which would end by itself."""


def test_children_and_their_children_end_with_a_killed_process() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(OWNER)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        grandchild = psutil.Process(int(owner.stdout.readline()))
        child = grandchild.parent()
        assert child is not None
        owner.kill()
        owner.wait()
        gone, alive = psutil.wait_procs([child, grandchild], timeout=60)
        assert (len(gone), alive) == (2, [])
