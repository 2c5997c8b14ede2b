"""What `progress` makes of Spark's reports of a query."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from backfill.spark.monitor import progress


@dataclass
class FakeQuery:
    """A query that reads a table, and has ended batches of a second each; the last one did so `ago` seconds ago."""

    ago: float
    has_data: bool = False
    control_rows: int | None = None
    isActive: bool = True  # noqa: N815 - Spark's name
    name: str = "orders"
    durations: dict[str, int] = field(default_factory=lambda: {"addBatch": 600, "latestOffset": 300})

    @property
    def status(self) -> dict[str, bool]:
        return {"isDataAvailable": self.has_data}

    @property
    def recentProgress(self) -> list[Any]:  # noqa: N802 - Spark's name
        return [self._batch(number) for number in range(3)]

    def _batch(self, number: int) -> SimpleNamespace:
        began = datetime.now(UTC) - timedelta(seconds=self.ago + 3 - number)
        held = {} if self.control_rows is None else {"control": "paused", "control_rows": self.control_rows}
        report = {"table": "t", "phase": "snapshot", "snapshot_rows": 100 * number, "lag_seconds": 7, **held}
        source = SimpleNamespace(latestOffset=json.dumps(report), endOffset=None)
        return SimpleNamespace(
            timestamp=began.isoformat(),
            sources=[source],
            batchId=number,
            batchDuration=1000,
            durationMs=self.durations,
        )


def seen(query: FakeQuery) -> tuple[int | None, bool]:
    """Returns how many rows a second the query reads, and whether it is behind."""
    found = progress(cast(Any, query))
    assert found.lag_seconds is not None
    return None if found.rows_per_second is None else round(found.rows_per_second), found.lag_seconds >= 7


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (FakeQuery(0.0, has_data=True), (100, True)),
        (FakeQuery(900.0, has_data=True), (100, True)),
        (FakeQuery(0.5), (100, True)),
        (FakeQuery(30.0), (None, False)),
        (FakeQuery(0.0, durations={"latestOffset": 300}), (None, False)),
        (FakeQuery(30.0, isActive=False), (100, True)),
        (FakeQuery(0.0, has_data=True, control_rows=0), (None, True)),
    ],
    ids=["reads", "hangs", "looks for its next batch", "waits", "says that it waits", "has ended", "is held"],
)
def test_while_it_looks_for_its_next_batch_a_query_still_reads_and_is_as_far_behind_as_before(
    query: FakeQuery, expected: tuple[int | None, bool]
) -> None:
    assert seen(query) == expected
