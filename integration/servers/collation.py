"""A locale that orders text as people do, and one whose currency has no decimals.

A test of text keys proves little in a database that orders by bytes, but a bare machine offers only such locales
(C and C.UTF-8). The definitions of others come with Debian's package `locales`; compiled, they need no place in the
system: LOCPATH leads a process to them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from integration.kept import KEPT
from integration.servers.server import ServerError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from integration.servers.sandbox import Sandbox

NAME = "en_US.utf8"
"""The locale, and the collation of that name that every database has."""

MONETARY = "ja_JP.utf8"
"""Compiled together with NAME; a server that is not of our making need not have it."""

SOURCES = {name: name.partition(".")[0] for name in (NAME, MONETARY)}
"""The name of the definition of each locale."""

DEFINITIONS = (Path("/usr/share/i18n"), Path(sys.prefix, "share", "i18n"))
"""Where the package is installed, and where `make setup` unpacks it without the right to install it."""

COMPILED = KEPT / "locales"
"""Where the locales that were compiled from the definitions are kept."""


@dataclass(frozen=True)
class Locale:
    """The environment in which a process knows these locales."""

    environment: Mapping[str, str] = field(default_factory=dict)


def linguistic_locale(sandbox: Sandbox) -> Locale:
    """The machine's own locales, or these in the sandbox.

    Where the machine has NAME alone, and no definitions, it is taken: little needs MONETARY.
    """
    known = _known()
    if len(known) == len(SOURCES):
        return Locale()
    if definitions := _definitions():
        target = sandbox.make_folder("locale")
        for name, source in SOURCES.items():
            shutil.copytree(compiled(source, definitions), target / name)  # where the servers' account may read it
        for path in target.rglob("*"):
            sandbox.account.own(path)
        return Locale({"LOCPATH": f"{target}:/usr/lib/locale"})
    if NAME in known:
        return Locale()
    raise ServerError(
        f"this machine has neither the locale {NAME} nor the definitions to compile it from."
        " Run `make setup`, or install the package `locales`."
    )


def compile_all() -> None:
    """Makes beforehand what `linguistic_locale` would make; does nothing where the machine has or lacks all."""
    definitions = _definitions()
    if definitions and len(_known()) < len(SOURCES):
        for source in SOURCES.values():
            compiled(source, definitions)


def compiled(source: str, definitions: Path) -> Path:
    """The folder of a locale, made once for each installation: it takes a second or two, and many servers need it."""
    place = COMPILED / source
    if not place.is_dir():
        COMPILED.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=COMPILED) as folder:
            made = Path(folder, source)
            command = ["localedef", "-i", source, "-f", "UTF-8", str(made)]
            done = subprocess.run(
                command, env={**os.environ, "I18NPATH": str(definitions)}, capture_output=True, text=True, check=False
            )
            if not made.is_dir():
                raise ServerError(f"localedef did not compile {source}: {done.stderr}")
            with suppress(OSError):  # another process may have made it in the meantime
                made.rename(place)
    return place


def _known() -> set[str]:
    """The locales of SOURCES that the machine has."""
    listed = subprocess.run(["locale", "-a"], capture_output=True, text=True, check=False).stdout
    names = listed.lower().replace("utf-8", "utf8").split()
    return {name for name in SOURCES if name.lower() in names}


def _definitions() -> Path | None:
    """The folder that has the definitions of both."""
    having = (
        folder for folder in DEFINITIONS if all((folder / "locales" / source).is_file() for source in SOURCES.values())
    )
    return next(having, None)
