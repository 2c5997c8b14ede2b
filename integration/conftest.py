"""What every integration test may ask for; see the modules named here."""

from __future__ import annotations

pytest_plugins = [
    "integration.fixtures.doctor",
    "integration.fixtures.orphans",
    "integration.fixtures.postgres",
    "integration.fixtures.seed",
    "integration.fixtures.signals",
    "integration.fixtures.spark",
    "integration.fixtures.streams",
]
