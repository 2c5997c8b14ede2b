"""PostgreSQL's official image, where a Docker engine answers."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import psycopg

from integration.servers import reaper
from integration.servers.external import ExternalServer
from integration.servers.server import SETTINGS, ServerError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from testcontainers.core.container import DockerContainer

IMAGE = "BACKFILL_TEST_IMAGE"
DEFAULT_IMAGE = "postgres:18"
PASSWORD = "backfill"  # noqa: S105 - of a server that lives as long as the tests
PATIENCE = 120.0
"""Seconds until a container accepts connections: it makes its cluster first."""

ASK = "from testcontainers.core.docker_client import DockerClient; DockerClient(timeout=10).client.ping()"
"""Asks through testcontainers, which also finds engines of a Docker context; the client library alone does not."""


class ContainerServer(ExternalServer):
    """The server in a container, used like one that somebody else runs, except that its log can be read."""

    def __init__(self, machine: DockerContainer) -> None:
        self._machine = machine
        host, port = machine.get_container_host_ip(), machine.get_exposed_port(5432)
        # "localhost" is ::1 first, where an engine may give another port, and give this port to another container.
        address = f"{'127.0.0.1' if host == 'localhost' else host}:{port}"
        dsn = f"postgresql://postgres:{PASSWORD}@{address}/postgres"
        self._wait(dsn)
        super().__init__(dsn, settings=SETTINGS)
        self.origin = f"{machine.image} in Docker"

    def log(self) -> str:
        return b"".join(self._machine.get_logs()).decode(errors="replace")

    def _wait(self, dsn: str) -> None:
        """Waits until connections are accepted. While the image makes its cluster, it listens on a Unix socket only."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                psycopg.connect(dsn, connect_timeout=10).close()
            except psycopg.OperationalError as error:
                self._machine.reload()
                if self._machine.status != "running" or time.monotonic() > deadline:
                    message = f"no connection: {str(error).strip()}\nIts log ends with:\n{self.log()[-3000:]}"
                    raise ServerError(message) from None
                time.sleep(0.1)
            else:
                return


def refuse_without_engine() -> None:
    """Raises ServerError unless a Docker engine answers.

    Another process asks, because the client library leaves a socket open when nobody answers, and our tests take the
    warning about it for an error.
    """
    try:
        asked = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        raise ServerError("the Docker engine does not answer") from None
    if asked.returncode != 0:
        reason = [line for line in asked.stderr.splitlines() if "Error" in line or "Exception" in line]
        raise ServerError(f"no Docker engine answers ({reason[-1] if reason else 'no reason given'})")


@contextmanager
def container(environment: Mapping[str, str]) -> Iterator[ContainerServer]:
    """A server in a container, which is removed even when this process is killed."""
    refuse_without_engine()
    # Imported only here, because the library reads its configuration when it is imported.
    from docker.errors import DockerException  # noqa: PLC0415
    from testcontainers.core.config import testcontainers_config  # noqa: PLC0415
    from testcontainers.core.container import DockerContainer  # noqa: PLC0415

    # Its own way to remove what is left is another container, which wants the engine's socket for itself.
    testcontainers_config.ryuk_disabled = True
    image = environment.get(IMAGE, DEFAULT_IMAGE)
    arguments = [word for name, value in SETTINGS.items() for word in ("-c", f"{name}={value}")]
    machine = DockerContainer(image).with_exposed_ports(5432).with_env("POSTGRES_PASSWORD", PASSWORD)
    # An engine gives 64 MB unless it is told otherwise, which is little for parallel queries.
    machine.with_command(arguments).with_kwargs(shm_size="1g")
    with reaper.waiting(), ExitStack() as stack:
        stack.callback(machine.stop)
        try:
            server = ContainerServer(machine.start())
        # The errors of the client library, of a connection to the engine, and of testcontainers.
        except (DockerException, OSError, RuntimeError, ServerError) as error:
            raise ServerError(f"no container of {image}: {error}") from error
        yield server
