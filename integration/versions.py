"""Tests of what only newer servers can do."""

from __future__ import annotations

import pytest

from integration.database import Database


def require_version(database: Database, since: int, what: str) -> None:
    """Skips the test where the server is older than this `server_version_num`."""
    if database.server.version < since:
        pytest.skip(f"{what} came with version {since // 10_000}")


def require_before(database: Database, version: int, what: str) -> None:
    """Skips the test where the server is of this `server_version_num` or newer."""
    if database.server.version >= version:
        pytest.skip(f"{what} went with version {version // 10_000}")
