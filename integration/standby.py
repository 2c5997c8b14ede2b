"""A server of the tests as a standby, and as a primary again; it follows nobody."""

from __future__ import annotations

import subprocess

from integration.servers import LocalServer


def become_standby(server: LocalServer) -> None:
    server.stop()
    data = server.folder / "data"
    subprocess.run(["cp", "-a", data / "PG_VERSION", data / "standby.signal"], check=True)
    server.start()


def become_primary(server: LocalServer) -> None:
    """On the timeline that it was on, as none is who was restarted and not promoted."""
    server.stop()
    (server.folder / "data" / "standby.signal").unlink()
    server.start()
