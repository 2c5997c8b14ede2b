"""What a task loads: it runs where neither a state directory nor its database engine need be."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["batch_reader", "span_reader", "stream_reader"])
def test_the_readers_that_tasks_unpickle_load_no_state_store(module: str) -> None:
    code = f"import sys, backfill.spark.{module}; print({{'duckdb', 'backfill_state'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "set()"
