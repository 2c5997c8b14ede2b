"""Where the server is, and how it has to identify itself, as far as the url does not say so."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from psycopg import pq
from psycopg.conninfo import make_conninfo

_WHERE: Final = ("host", "hostaddr", "port", "dbname", "user")

_HOW: Final = ("sslmode", "target_session_attrs")
"""Parameters that executors are not given while they are libpq's defaults, which would override the executors' own."""

_SOCKETS: Final = ("/var/run/postgresql", "/tmp")  # noqa: S108 - where PostgreSQL has its sockets

_REFUSED: Final = {"gssencmode": "?"}
"""A value that libpq refuses after it has looked up what a service stands for, and before it connects to anything."""


def completed(given: Mapping[str, str]) -> dict[str, str]:
    """A connection string's parameters, with what libpq would take from this process's environment, or by default; and
    where nothing names a host, with the folder of this machine that has the server's socket.

    Executors are to go where the driver goes, whatever is in their environment, and whoever they run as. What PGSERVICE
    stands for belongs to the environment. A service among the given parameters takes precedence over the environment,
    and is looked up for every session (`spelled_out`).
    """
    defaults = {option.keyword.decode(): option for option in pq.Conninfo.get_defaults()}
    if "service" in given:
        known = spelled_out(given)
        named = {name: os.environ.get(_variable(defaults[name])) for name in _WHERE}
        return {**{name: value for name, value in named.items() if value and known.get(name) == value}, **given}
    found = {name: value.decode() for name in _WHERE if (value := defaults[name].val)}
    for name in _HOW:
        option = defaults[name]
        if option.val and (option.val != option.compiled or _variable(option) in os.environ):
            found[name] = option.val.decode()
    # An empty one is libpq's default; a missing one would be looked for in an executor's environment.
    return {"hostaddr": "", "dbname": "", **_with_folder({**found, **given})}


def spelled_out(given: Mapping[str, str]) -> dict[str, str]:
    """A connection string's parameters, with those of the service that they name in its place.

    The libraries of the two drivers look for the machine's services and for sockets in different places, and psycopg
    splits a list of hosts only if it sees it. A service that is not found is left in, for libpq to refuse.
    """
    found = _understood(given) if "service" in given else {}
    if not found:
        return dict(given)
    return _with_folder({name: value for name, value in {**found, **given}.items() if not name.startswith("service")})


def _understood(given: Mapping[str, str]) -> dict[str, str]:
    """What libpq makes of these parameters, without its defaults; nothing where it finds no service."""
    options = pq.PGconn.connect_start(make_conninfo("", **{**given, **_REFUSED}).encode()).info
    found = {option.keyword.decode(): option.val.decode() for option in options if option.val}
    granted = {option.keyword.decode(): option.compiled for option in options}
    left = (*_REFUSED, "replication")
    return {name: value for name, value in found.items() if name not in left and value.encode() != granted[name]}


def _variable(option: pq.ConninfoOption) -> str:
    """The environment variable of the parameter."""
    return (option.envvar or b"").decode()


def _with_folder(found: Mapping[str, str]) -> dict[str, str]:
    """The parameters, with the folder of the socket where they name no host: each library would look in another one."""
    if found.get("host") or found.get("hostaddr"):
        return dict(found)
    name = f".s.PGSQL.{found.get('port') or '5432'}"
    there = next((folder for folder in _SOCKETS if Path(folder, name).exists()), None)
    return {**found, **({"host": str(there)} if there is not None else {})}
