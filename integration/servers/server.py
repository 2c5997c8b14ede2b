"""What a test may ask of a PostgreSQL server."""

from __future__ import annotations

from enum import Flag, auto
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

StopMode = Literal["smart", "fast", "immediate"]
"""How a server goes down: when all clients have left, after disconnecting them, or without a checkpoint."""

SETTINGS: Mapping[str, str] = {
    "wal_level": "logical",
    # Tests end processes, never the machine: what the kernel has been given is safe without fsync.
    "fsync": "off",
    "max_connections": "100",
    "max_prepared_transactions": "10",
    "max_replication_slots": "40",
    "max_wal_senders": "20",
    "max_wal_size": "4GB",
    "shared_buffers": "256MB",
    # A test may hold a client still on purpose, for longer than the default minute.
    "wal_sender_timeout": "5min",
    # Once a minute it would write to the log, hold locks and change what the planner knows, in the midst of any test.
    "autovacuum": "off",
    "lc_messages": "C",
    "timezone": "UTC",
}
"""What every server that we start ourselves is configured with, unless a test says otherwise."""


class ServerError(Exception):
    """A server cannot be had, or cannot do what it was asked for."""


class Can(Flag):
    """What the owner of a server allows a test to do with it."""

    NOTHING = 0
    RESTART = auto()
    KILL = auto()
    PROGRAMS = auto()


class Server(Protocol):
    """A PostgreSQL with logical decoding, and a role that may do everything.

    `start`, `stop`, `restart`, `kill` and `bin` raise ServerError where `can` does not hold the ability. They
    return when the new state is reached. The address stays the same over a restart.
    """

    @property
    def dsn(self) -> str:
        """URI of the maintenance database, over TCP."""
        ...

    @property
    def version(self) -> int:
        """The version as in `server_version_num`: 180002 is 18.2."""
        ...

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings that we gave it beyond PostgreSQL's defaults; empty if somebody else configured it."""
        ...

    @property
    def can(self) -> Can: ...

    @property
    def origin(self) -> str:
        """Where the server comes from, in words for people."""
        ...

    def start(self) -> None:
        """Does nothing to a server that is running."""

    def stop(self, mode: StopMode = "fast") -> None:
        """Does nothing to a server that is not running."""

    def restart(self, mode: StopMode = "fast") -> None: ...

    def kill(self) -> None:
        """Sends SIGKILL to every process of the server; `start` then goes through crash recovery."""

    def bin(self, name: str) -> Path:
        """One of PostgreSQL's own programs, of this server's version."""
        ...

    def log(self) -> str:
        """What the server has logged so far; empty if we cannot see it."""
        ...
