"""A stream whose way to the database leads through a `Proxy`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from psycopg.conninfo import conninfo_to_dict

from integration.crash.proxy import Proxy
from integration.database import Database
from integration.servers.address import as_uri


@contextmanager
def proxied(database: Database) -> Iterator[tuple[Proxy, str]]:
    """A proxy before the database, and the url that leads through it."""
    parts = conninfo_to_dict(database.dsn)
    with Proxy(str(parts["host"]), int(parts.get("port") or 5432)) as proxy:
        yield proxy, as_uri(database.options["url"], host="127.0.0.1", port=str(proxy.port))
