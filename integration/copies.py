"""A table `copy` that the sink writes to without Spark: a sink that applies batches, and rows to make batches of."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from backfill.sinks import postgres
from backfill.sinks.postgres import PostgresSink, apply_to
from integration.database import Database
from tests.collected import Rows

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None)
INSERT: Mapping[str, object] = {"_change_type": "insert", "_commit_version": 1, "_sequence": 1}


def batch_of(*rows: Mapping[str, object]) -> Rows:
    """A batch of these rows, which are inserts unless a row says otherwise."""
    return Rows(pa.Table.from_pylist([{**INSERT, **row} for row in rows]))


def inserts(*ids: int) -> Rows:
    return batch_of(*({"id": number} for number in ids))


def sink(database: Database, folder: Path, *key: str, table: str = "copy", query: str = "t") -> PostgresSink:
    """A sink that applies batches to the table, whose key is `id` unless one is given."""
    made = apply_to(url=database.url(folder), table=table, key=key or ("id",), query=query)
    assert isinstance(made, PostgresSink)
    return made


def wait_for_locks(monkeypatch: pytest.MonkeyPatch, timeout: str) -> None:
    """From now on sinks wait for a lock as long as `timeout` says before they begin a batch anew."""
    monkeypatch.setattr(postgres, "_BEGIN", postgres._BEGIN.replace(postgres.LOCK_TIMEOUT, timeout))
