"""The processes of one local server."""

from __future__ import annotations

import signal
import subprocess
import time
from typing import TYPE_CHECKING

import psutil

from integration.servers.server import ServerError, StopMode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from integration.servers.account import Account

PATIENCE = 180.0
"""Seconds for a start, which may include crash recovery, and for a stop."""

STOP_SIGNALS: Mapping[StopMode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}


class Postmaster:
    """Starts and ends a server on a data directory.

    The postmaster is a child of this process, not one that pg_ctl has let go: a killed child is collected here.
    In a container whose first process collects nobody, the next start would take its zombie for a running server.
    """

    def __init__(
        self, program: Path, data: Path, log: Path, *, account: Account, environment: Mapping[str, str]
    ) -> None:
        self._command = (program, "-D", data)
        self._data = data
        self._log = log
        self._account = account
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The number of the process; None if it does not run."""
        if self._process is None or self._process.poll() is not None:
            return None
        return self._process.pid

    def start(self) -> None:
        """Returns when connections are accepted; ServerError, with the end of the log, if that does not happen."""
        if self.pid is not None:
            return
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._data,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the tests, which stop the server after their clients
                **self._account.identity,
            )
        deadline = time.monotonic() + PATIENCE
        while self._process.poll() is None and time.monotonic() < deadline:
            if self._is_ready(self._process.pid):
                return
            time.sleep(0.01)
        self.stop("immediate")
        raise ServerError(f"PostgreSQL did not start. Its log ends with:\n{self._log.read_text()[-3000:]}")

    def stop(self, mode: StopMode) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(STOP_SIGNALS[mode])
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise ServerError(f"PostgreSQL was told to stop ({mode}) and runs on after {PATIENCE:.0f} s") from None

    def kill(self) -> None:
        """Sends SIGKILL to the postmaster and everything below it, as if at one instant."""
        if self._process is None or self._process.poll() is not None:
            raise ServerError("the server to be killed does not run")
        postmaster = psutil.Process(self._process.pid)
        # Held still first, so that no backend is born while its siblings are being counted.
        postmaster.suspend()
        backends = postmaster.children(recursive=True)
        for process in (postmaster, *backends):
            process.kill()
        self._process.wait(PATIENCE)
        wait_for_end(backends)

    def _is_ready(self, pid: int) -> bool:
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        # The file of a killed predecessor says "ready" as well.
        return len(lines) > 7 and int(lines[0]) == pid and lines[7].strip() == "ready"


def wait_for_end(processes: Sequence[psutil.Process]) -> None:
    """Waits until none of them runs any more; zombies do not run, whoever has to collect them."""
    deadline = time.monotonic() + PATIENCE
    while any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes):
        if time.monotonic() > deadline:
            raise ServerError("killed processes are still there")
        time.sleep(0.005)
