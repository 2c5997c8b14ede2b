"""Tests of what only some servers can do."""

from __future__ import annotations

import psycopg
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


def require_yen(database: Database) -> None:
    """Makes yen the database's currency, which has no decimals; skips the test where the server does not know it."""
    try:
        database.execute(f"ALTER DATABASE {database.name} SET lc_monetary = 'ja_JP.utf8'")
    except psycopg.errors.InvalidParameterValue:
        pytest.skip("this server knows no locale whose currency has no decimals")
