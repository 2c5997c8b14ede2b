"""What a sink needs beside the package itself."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("sink", "package", "extra"),
    [
        ("delta", "deltalake", "delta"),
        ("postgres", "psycopg", "postgres"),
        ("postgres", "adbc_driver_manager", "postgres"),
        ("postgres", "adbc_driver_postgresql", "postgres"),
    ],
)
def test_a_sink_without_its_packages_says_what_to_install(sink: str, package: str, extra: str) -> None:
    script = f"import sys; sys.modules[{package!r}] = None\nfrom backfill.sinks import {sink}"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    last = found.stderr.splitlines()[-1]
    assert f"needs the package {package}" in last
    assert f"pip install 'pyspark-backfill[{extra}]'" in last
