"""pgbench, PostgreSQL's own benchmark program: it makes the table, and then changes it all the while."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from integration.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from integration.database import Database

TABLE: Final = "public.pgbench_accounts"
ROWS_PER_SCALE: Final = 100_000
CLIENTS: Final = 4
LONGEST: Final = 600
"""Seconds after which pgbench stops by itself, whatever became of us."""


@dataclass(frozen=True)
class Script:
    """A transaction that pgbench runs, and how often in relation to the others."""

    name: str
    weight: int
    text: str


SCRIPTS: Final = (
    Script(
        "deposit",
        12,
        """
        \\set account random(1, :accounts)
        \\set amount random(-5000, 5000)
        UPDATE pgbench_accounts SET abalance = abalance + :amount WHERE aid = :account;
        """,
    ),
    Script(
        "transfer",
        4,
        """
        \\set account random(1, :accounts / 2)
        \\set amount random(1, 5000)
        BEGIN;
        UPDATE pgbench_accounts SET abalance = abalance - :amount WHERE aid = :account;
        UPDATE pgbench_accounts SET abalance = abalance + :amount WHERE aid = :account + :accounts / 2;
        COMMIT;
        """,
    ),
    Script(
        "open",
        2,
        """
        \\set account random(:accounts + 1, 2000000000)
        INSERT INTO pgbench_accounts VALUES (:account, 1, 100, 'opened') ON CONFLICT DO NOTHING;
        """,
    ),
    Script(
        "close",
        1,
        """
        \\set account random(1, :accounts)
        DELETE FROM pgbench_accounts WHERE aid = :account;
        """,
    ),
    # The new key lies before all others: most of these rows move from where has not been read to where has been.
    Script(
        "renumber",
        1,
        """
        \\set account random(1, :accounts)
        UPDATE pgbench_accounts SET aid = -aid WHERE aid = :account;
        """,
    ),
)


@dataclass(frozen=True)
class Pgbench:
    """The program of the database's own server."""

    database: Database
    folder: Path

    def make_tables(self, scale: int) -> None:
        """pgbench's tables with `scale` times 100,000 accounts; every balance is 0."""
        subprocess.run(
            [self._program, "--initialize", "--quiet", f"--scale={scale}", self.database.dsn],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    @contextmanager
    def writing(self, *, scale: int, rate: int) -> Iterator[None]:
        """While the block runs, about `rate` of the transactions above a second; none is under way after it."""
        for script in SCRIPTS:
            (self.folder / f"{script.name}.sql").write_text(script.text)
        with (self.folder / "pgbench.log").open("w") as log:
            process = subprocess.Popen(
                [
                    *(self._program, "--no-vacuum", f"--client={CLIENTS}", f"--rate={rate}", f"--time={LONGEST}"),
                    f"--define=accounts={scale * ROWS_PER_SCALE}",
                    *(f"--file={self.folder / script.name}.sql@{script.weight}" for script in SCRIPTS),
                    self.database.dsn,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            yield
            if process.poll() is not None:
                raise RuntimeError(f"pgbench ended early:\n{(self.folder / 'pgbench.log').read_text()}")
        finally:
            process.terminate()
            process.wait()
            self._wait_for_backends()

    def changes(self) -> int:
        """How many rows have been inserted, updated or deleted since the tables were made."""
        ((count,),) = self.database.execute(
            "SELECT n_tup_ins + n_tup_upd + n_tup_del FROM pg_stat_user_tables WHERE relid = %s::regclass", [TABLE]
        )
        return int(count)

    @property
    def _program(self) -> Path:
        return self.database.server.bin("pgbench")

    def _wait_for_backends(self) -> None:
        """The server notices only after a moment that a client has gone, and may finish its transaction until then."""
        query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench'"
        eventually(
            lambda: self.database.execute(query) == [(0,)], otherwise=lambda: "pgbench's sessions are still there"
        )
