"""A DuckDB table that follows the stream. It does what any consumer has to do, and a few lines are enough."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import duckdb

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

TABLES: Final = """
    CREATE TABLE accounts (aid INTEGER PRIMARY KEY, bid INTEGER, abalance INTEGER, filler VARCHAR);
    CREATE TABLE batches (
        number BIGINT PRIMARY KEY, snapshot_rows BIGINT, change_rows BIGINT, rows_after BIGINT, seconds_behind DOUBLE);
"""

# A row read from the table is a plain INSERT: the primary key refuses it, should the stream ever bring it twice.
# Of the changes to one account the last one counts; an account whose key changes arrives as a delete and an insert.
APPLY: Final = """
    CREATE TEMP TABLE last AS
        SELECT * FROM batch WHERE NOT _is_snapshot
        QUALIFY row_number() OVER (PARTITION BY aid ORDER BY _sequence DESC) = 1;
    DELETE FROM accounts WHERE aid IN (SELECT aid FROM last WHERE _change_type = 'delete');
    INSERT OR REPLACE INTO accounts SELECT aid, bid, abalance, filler FROM last WHERE _change_type <> 'delete';
    INSERT INTO accounts SELECT aid, bid, abalance, filler FROM batch WHERE _is_snapshot;
    DROP TABLE last;
"""

STORE: Final = """
    INSERT INTO batches
    SELECT ?, count(*) FILTER (_is_snapshot), count(*) FILTER (NOT _is_snapshot), (SELECT count(*) FROM accounts),
           epoch(get_current_timestamp()) - epoch(max(_commit_timestamp))
    FROM batch
"""


@dataclass(frozen=True)
class Batch:
    """What one batch brought, how many accounts there were after it, and how old its newest row was by then."""

    snapshot_rows: int
    changes: int
    rows_after: int
    seconds_behind: float


class Accounts:
    """The accounts as the stream has told them so far. Applying a batch again changes nothing."""

    def __init__(self, path: Path) -> None:
        self._database = duckdb.connect(str(path))
        self._database.execute(TABLES)

    def apply(self, rows: DataFrame, number: int) -> None:
        """For `foreachBatch`. The batch and its number are stored in one transaction."""
        with self._database.cursor() as session:
            if session.execute("FROM batches WHERE number = ?", [number]).fetchone():
                return
            session.register("batch", rows.toArrow())
            session.begin()
            session.execute(APPLY)
            session.execute(STORE, [number])
            session.commit()

    def batch(self, number: int) -> Batch:
        with self._database.cursor() as session:
            row = session.execute("SELECT * EXCLUDE number FROM batches WHERE number = ?", [number]).fetchone()
        return Batch(*row) if row else Batch(0, 0, 0, 0.0)

    def session(self) -> duckdb.DuckDBPyConnection:
        return self._database.cursor()

    def close(self) -> None:
        self._database.close()
