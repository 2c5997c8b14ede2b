"""The Java that Spark runs on.

As a program it prints its home. It needs nothing but the standard library: it is run before anything is installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

OLDEST = 17


class JavaError(Exception):
    """There is no Java that Spark could run on."""


def java_home(environment: Mapping[str, str]) -> Path:
    """JAVA_HOME, or the home of the `java` on the path, or one installed where Linux systems put them.

    The first that is new enough is taken. Raises JavaError, naming what was found, if none is.
    """
    seen = []
    for home in candidates(environment):
        version = version_of(home)
        if version >= OLDEST:
            return home
        seen.append(f"{home} (version {version})")
    raise JavaError(f"Spark needs Java {OLDEST} or newer; found: {', '.join(seen) or 'none'}. Try `make setup`.")


def candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    """Folders that hold bin/java."""
    if home := environment.get("JAVA_HOME"):
        yield Path(home)
    if program := shutil.which("java"):
        yield Path(program).resolve().parent.parent
    for folder in ("/usr/lib/jvm", "/opt/java"):
        yield from (java.parent.parent for java in sorted(Path(folder).glob("*/bin/java")))


def version_of(home: Path) -> int:
    """The feature version, or 0 if no Java can be run there."""
    try:
        done = subprocess.run(
            [home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(found[1]) if found else 0


if __name__ == "__main__":
    try:
        print(java_home(os.environ))
    except JavaError as error:
        sys.exit(str(error))
