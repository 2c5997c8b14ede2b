"""Packages that a sink needs in addition to this one."""

from __future__ import annotations

import os
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


def test_a_driver_that_cannot_be_used_says_why() -> None:
    """`psycopg` does so without the PostgreSQL library that it was told to use."""
    found = subprocess.run(
        [sys.executable, "-c", "from backfill.sinks import postgres"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PSYCOPG_IMPL": "ctypes"},
    )
    assert "needs a package that cannot be used (" in found.stderr
    assert "'ctypes'" in found.stderr.splitlines()[-1]


def test_a_release_of_pyarrow_that_reads_other_times_is_not_used_for_delta() -> None:
    script = "import pyarrow; pyarrow.__version__ = '23.0.1'\nfrom backfill.sinks import delta"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    last = found.stderr.splitlines()[-1]
    assert "pyarrow is 23.0.1" in last
    assert "expected 24 or newer" in last
    assert "pip install 'pyspark-backfill[delta]'" in last
