"""A server that somebody else runs: used, never stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Never

import psycopg

from integration.servers.address import as_uri
from integration.servers.server import Can, ServerError, StopMode

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DSN = "BACKFILL_TEST_DSN"


class ExternalServer:
    """A server that is reached through the connection string of a role that may do everything.

    Raises ServerError if it cannot be reached, or cannot decode logically.
    """

    can = Can.NOTHING
    origin = f"named by {DSN}"

    def __init__(self, conninfo: str, *, settings: Mapping[str, str] | None = None) -> None:
        self.dsn = as_uri(conninfo)
        self.settings: Mapping[str, str] = settings or {}
        with self._connect() as connection:
            self.version = connection.info.server_version
            (level,) = connection.execute("SHOW wal_level").fetchone() or ("unknown",)
        if level != "logical":
            raise ServerError(f"wal_level is {level!r}; the tests need a server with 'logical'")

    def start(self) -> None:
        self._refuse("started")

    def stop(self, mode: StopMode = "fast") -> None:
        self._refuse(f"stopped ({mode})")

    def restart(self, mode: StopMode = "fast") -> None:
        self._refuse(f"restarted ({mode})")

    def kill(self) -> None:
        self._refuse("killed")

    def bin(self, name: str) -> Path:
        self._refuse(f"asked for its program {name!r}")

    def log(self) -> str:
        return ""

    def _connect(self) -> psycopg.Connection[tuple[str, ...]]:
        try:
            return psycopg.connect(self.dsn, autocommit=True, connect_timeout=10)
        except psycopg.OperationalError as error:
            raise ServerError(f"no connection: {str(error).strip()}") from None

    def _refuse(self, what: str) -> Never:
        raise ServerError(f"a server that is not ours cannot be {what}; start one of your own for that")
