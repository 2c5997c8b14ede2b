"""A temporary folder with processes in it, none of which outlives this process."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Self

from integration import orphans
from integration.servers import guard
from integration.servers.account import Account, unprivileged
from integration.servers.server import ServerError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Sandbox:
    """A folder of an unprivileged account, in which programs run as that account.

    The folder and its processes go when the sandbox is closed or this process ends, however it ends: another
    program, `guard.py`, waits for that. A child made by a bare fork holds on to the sandbox until it ends, too.
    """

    def __init__(self) -> None:
        self.account: Account = unprivileged()
        # Resolved, because the guard compares it with what the kernel says about processes.
        self.path = Path(tempfile.mkdtemp(prefix="backfill-")).resolve()
        self._guard = subprocess.Popen(
            [
                *(sys.executable, "-I", guard.__file__),
                *(self.path, str(self.account.uid), str(self.account.gid)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=orphans.unguarded(),
            start_new_session=True,  # or Ctrl-C would end the guard together with us
        )
        self.path.chmod(0o755)
        self.account.own(self.path)
        self._refuse_hidden_folder()

    def run(
        self, command: Sequence[str | Path], *, environment: Mapping[str, str] | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end in this folder, with nothing of our own environment.

        Raises ServerError with the program's output if it fails and `check` is set.
        """
        # To a file, not to a pipe: a server that the program leaves behind would keep a pipe open.
        with tempfile.TemporaryFile("w+") as output:
            done = subprocess.run(
                command,
                cwd=self.path,
                env={"PATH": SYSTEM_PATH, "HOME": str(self.path)} | dict(environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
                **self.account.identity,
            )
            output.seek(0)
            text = output.read()
        if check and done.returncode != 0:
            program = Path(command[0]).name
            raise ServerError(f"{program} ended with {done.returncode}:\n{text.strip()}")
        return subprocess.CompletedProcess(command, done.returncode, text, "")

    def can_run(self, program: Path) -> bool:
        """Whether the account may reach and execute `program`."""
        try:
            return self.run([program, "--version"], check=False).returncode == 0
        except PermissionError:
            return False

    def make_folder(self, name: str) -> Path:
        folder = self.path / name
        folder.mkdir(mode=0o755)
        self.account.own(folder)
        return folder

    def close(self) -> None:
        """End the processes, remove the folder. Raises ServerError if something is left; may be called twice."""
        if self._guard.returncode is not None:
            return
        _, complaint = self._guard.communicate()
        if self._guard.returncode != 0:
            raise ServerError(f"the sandbox could not be cleared: {complaint.decode().strip()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refuse_hidden_folder(self) -> None:
        for parent in self.path.parents:
            if not self.account.is_ours and not parent.stat().st_mode & 0o001:
                self.close()
                raise ServerError(
                    f"PostgreSQL does not run as root, and the unprivileged account it runs as cannot enter {parent}."
                    f" Set TMPDIR to a folder that everybody may enter, such as /tmp."
                )
