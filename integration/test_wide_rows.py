"""Rows that take the server much memory each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from backfill.upstream.postgres.session.connection import Connector
from integration.servers import LocalServer

ROWS = 3000


def faults(pid: int) -> int:
    """How often the process has touched memory that the kernel had yet to give it (proc(5), minflt)."""
    # The name of the program stands in brackets, and may hold spaces.
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])


@pytest.mark.parametrize("columns", [220, 450])
def test_the_server_keeps_the_memory_of_a_row_for_the_next_one(
    start_postgres: Callable[[], LocalServer], columns: int
) -> None:
    connector = Connector.of(start_postgres().dsn)
    with closing(connector.new_arrow_session()) as session:
        session.execute("SELECT pg_catalog.pg_backend_pid()")
        ((pid,),) = session.fetchall()
        before = faults(pid)
        values = ", ".join(f"i + {number}" for number in range(columns))
        statement = f"SELECT {values} FROM pg_catalog.generate_series(1, {ROWS}) AS i"
        assert sum(batch.num_rows for batch in session.read(statement, batch_bytes=1 << 20)) == ROWS
        assert faults(pid) - before < 3 * ROWS
