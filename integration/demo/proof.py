"""Whether the sink is the table: every row, every column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from integration.demo.pgbench import TABLE

if TYPE_CHECKING:
    from pathlib import Path

    from integration.database import Database
    from integration.demo.sink import Accounts

COMPARE: Final = """
    SELECT (SELECT count(*) FROM upstream), (SELECT count(*) FROM accounts),
           (SELECT sum(abalance) FROM upstream), (SELECT sum(abalance) FROM accounts),
           (SELECT count(*) FROM (FROM upstream EXCEPT ALL FROM accounts)),
           (SELECT count(*) FROM (FROM accounts EXCEPT ALL FROM upstream))
"""


@dataclass(frozen=True)
class Comparison:
    """Figures of the table and of the sink, and the rows that only one of them has."""

    table_rows: int
    sink_rows: int
    table_sum: int
    sink_sum: int
    only_table: int
    only_sink: int

    @property
    def equal(self) -> bool:
        return self.table_rows == self.sink_rows and self.only_table == self.only_sink == 0


def compare(database: Database, accounts: Accounts, folder: Path) -> Comparison:
    """Has PostgreSQL write the table out, without any of our code, and DuckDB compare it with the sink."""
    path = folder / "table.csv"
    with (
        database.connect() as connection,
        connection.cursor().copy(f"COPY {TABLE} TO STDOUT (FORMAT csv)") as data,
        path.open("wb") as file,
    ):
        file.writelines(data)
    with accounts.session() as session:
        session.execute("CREATE TEMP TABLE upstream AS FROM accounts LIMIT 0")
        session.execute(f"COPY upstream FROM '{path}' (FORMAT csv)")
        row = session.execute(COMPARE).fetchone()
    path.unlink()
    assert row is not None
    return Comparison(*(int(value or 0) for value in row))
