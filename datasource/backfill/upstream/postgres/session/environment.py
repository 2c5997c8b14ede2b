"""Where the server is, as far as the url does not say it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_VARIABLES: Final = {
    "host": "PGHOST",
    "hostaddr": "PGHOSTADDR",
    "port": "PGPORT",
    "dbname": "PGDATABASE",
    "user": "PGUSER",
}

_SOCKETS: Final = ("/var/run/postgresql", "/tmp")  # noqa: S108 - where PostgreSQL has its sockets


def completed(given: Mapping[str, str]) -> dict[str, str]:
    """A connection string's parameters, with what libpq would take from this process's environment; and where nothing
    names a host, with the folder of this machine that has the server's socket.

    Executors are to go where the driver goes, whatever is in their environment. And of the drivers' libraries each has
    another folder of sockets. A service file stands before the environment, and is left to libpq.
    """
    if "service" in given or os.environ.get("PGSERVICE"):
        return dict(given)
    said = {name: os.environ[variable] for name, variable in _VARIABLES.items() if os.environ.get(variable)}
    found = {**said, **given}
    if not found.keys() & {"host", "hostaddr"}:
        name = f".s.PGSQL.{found.get('port', '5432')}"
        there = next((folder for folder in _SOCKETS if Path(folder, name).exists()), None)
        return found if there is None else {**found, "host": str(there)}
    return found
