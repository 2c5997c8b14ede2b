"""PostgreSQL's official image, where a Docker engine answers."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from integration.servers.external import ExternalServer
from integration.servers.server import SETTINGS, Server, ServerError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

IMAGE = "BACKFILL_TEST_IMAGE"
DEFAULT_IMAGE = "postgres:18"
PASSWORD = "backfill"  # noqa: S105 - of a server that lives as long as the tests


def refuse_without_engine() -> None:
    """Raises ServerError unless a Docker engine answers.

    Asked by another process: the client library leaves a socket open when nobody answers, and our tests take
    that warning for an error.
    """
    try:
        asked = subprocess.run(
            [sys.executable, "-c", "import docker; docker.from_env(timeout=10).ping()"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ServerError("the Docker engine does not answer") from None
    if asked.returncode != 0:
        reason = [line for line in asked.stderr.splitlines() if "Error" in line or "Exception" in line]
        raise ServerError(f"no Docker engine answers ({reason[-1] if reason else 'no reason given'})")


@contextmanager
def container(environment: Mapping[str, str]) -> Iterator[Server]:
    """A server in a container, which testcontainers removes also when this process is killed."""
    refuse_without_engine()
    # Only here: the library reads its configuration when it is imported.
    from docker.errors import DockerException  # noqa: PLC0415
    from testcontainers.core.container import DockerContainer  # noqa: PLC0415

    image = environment.get(IMAGE, DEFAULT_IMAGE)
    arguments = [word for name, value in SETTINGS.items() for word in ("-c", f"{name}={value}")]
    machine = DockerContainer(image).with_exposed_ports(5432).with_env("POSTGRES_PASSWORD", PASSWORD)
    machine.with_command(arguments)
    try:
        machine.start()
    except DockerException as error:
        raise ServerError(f"no container of {image}: {error}") from error
    try:
        address = f"{machine.get_container_host_ip()}:{machine.get_exposed_port(5432)}"
        # While the image initialises, its server listens on a Unix socket only.
        yield ExternalServer(f"postgresql://postgres:{PASSWORD}@{address}/postgres", settings=SETTINGS, patience=120.0)
    finally:
        machine.stop()
