"""Where the server is, and how it has to prove that, as far as the url does not say it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from psycopg import pq

_WHERE: Final = ("host", "hostaddr", "port", "dbname", "user")

_SOCKETS: Final = ("/var/run/postgresql", "/tmp")  # noqa: S108 - where PostgreSQL has its sockets


def completed(given: Mapping[str, str]) -> dict[str, str]:
    """A connection string's parameters, with what libpq would take from this process's environment, or for granted; and
    where nothing names a host, with the folder of this machine that has the server's socket.

    Executors are to go where the driver goes, whatever is in their environment, and whoever they run as. And of the
    drivers' libraries each has another folder of sockets. A service file stands before the environment, and is left to
    libpq.
    """
    if "service" in given or os.environ.get("PGSERVICE"):
        return dict(given)
    defaults = {option.keyword.decode(): option.val for option in pq.Conninfo.get_defaults()}
    said = {name: value.decode() for name in _WHERE if (value := defaults.get(name))}
    if mode := os.environ.get("PGSSLMODE"):  # Not what is taken for granted, which would undo an executor's own.
        said["sslmode"] = mode
    found = {**said, **given}
    if not found.keys() & {"host", "hostaddr"}:
        name = f".s.PGSQL.{found['port']}"
        there = next((folder for folder in _SOCKETS if Path(folder, name).exists()), None)
        if there is not None:
            found["host"] = str(there)
    # Empty is what libpq takes for granted; what is not there it would look for in an executor's environment.
    return {"hostaddr": "", "dbname": "", **found}
