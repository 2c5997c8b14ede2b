"""Short names for what happens to a stream on the simulated database, and for what it tells."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulator.database import Change, Key, Row, rank
from tests.simulator.harness import Spark
from tests.simulator.sink import Output

KEYS: list[Key] = sorted(((a, b) for a in range(5) for b in range(4)), key=rank)
"""Twenty keys in the database's order."""

StartQuery = Callable[..., Spark]


def row(key: Key, value: str = "new") -> Row:
    return (*key, value)


def insert(spark: Spark, *keys: Key) -> None:
    spark.database.commit([Change(None, row(key)) for key in keys])


def update(spark: Spark, key: Key, value: str = "changed") -> None:
    spark.database.commit([Change(spark.database.latest()[key], row(key, value))])


def delete(spark: Spark, key: Key) -> None:
    spark.database.commit([Change(spark.database.latest()[key], None)])


def move(spark: Spark, old: Key, new: Key) -> None:
    spark.database.commit([Change(spark.database.latest()[old], row(new, "moved"))])


def step(spark: Spark, max_rows: int | None = 2) -> list[tuple[str, Key, str | None]]:
    """Runs a batch, and returns what it emits in the order of the sequence; nothing where there is no batch."""
    if not spark.plan(max_rows):
        return []
    rows = spark.read()
    spark.commit(rows)
    spark.check()
    return changes_of(rows)


def changes_of(rows: list[Output]) -> list[tuple[str, Key, str | None]]:
    ordered = sorted(rows, key=lambda row: (row[7], rank(row[:2]) if row[0] is not None else (0, 0)))
    return [(row[3], row[:2], row[2]) for row in ordered]


def snapshot_of(*keys: Key, value: str = "at first") -> list[tuple[str, Key, str]]:
    return [("insert", key, value) for key in keys]


def caught_up(spark: Spark) -> Spark:
    while step(spark, None):
        pass
    return spark


def rows_again(*keys: Key, value: str = "at first") -> list[tuple[str, Key, str]]:
    return snapshot_of(*keys, value=value)
