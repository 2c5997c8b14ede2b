"""Clients that write on while their server is killed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

import psycopg
from psycopg import sql

from integration.database import Database
from integration.writers import Client, InThreads, Shape

AGAIN: Final = 0.05
"""Seconds between two tries to reach a server that does not answer."""

ENDED_BY_ANOTHER: Final = (psycopg.errors.UndefinedObject, psycopg.errors.ObjectNotInPrerequisiteState)
"""Errors for the slower of two that end one prepared transaction: it is gone, or the other has it in hand."""


class Load(InThreads):
    """Two clients that commit often, and one with long transactions.

    They keep the sum of all balances. About half of them do not wait for their commits to be flushed, so that some of
    what they believe committed is lost with the server's next death.
    """

    def __init__(self, database: Database, shape: Shape, size: int, random: Random, *, pause: float) -> None:
        self._database, self._shape, self._size, self._pause = database, shape, size, pause
        bodies = (self._hurry, self._hurry, self._linger)
        super().__init__(partial(self._keep_on, body, Random(random.getrandbits(64))) for body in bodies)

    def _hurry(self, client: Client, random: Random) -> None:
        while not self.stopped.wait(random.uniform(0, self._pause)):
            client.transaction()

    def _linger(self, client: Client, random: Random) -> None:
        while not self.stopped.is_set():
            client.begin()
            for _ in range(random.randrange(1, 12)):
                client.write()
                if self.stopped.wait(random.uniform(0, 0.1)):
                    break
            client.end()

    def _keep_on(self, body: Callable[[Client, Random], None], random: Random) -> None:
        while not self.stopped.is_set():
            wait = random.choice(["off", "on"])
            with contextlib.suppress(psycopg.OperationalError, *ENDED_BY_ANOTHER):
                resolve_prepared(self._database, random)
                client = Client(self._database, self._shape, self._size, random, wait=wait)
                with contextlib.closing(client):
                    body(client, random)
            self.stopped.wait(AGAIN)

    def clear_up(self) -> None:
        resolve_prepared(self._database, Random(0))


def resolve_prepared(database: Database, random: Random) -> None:
    """Ends prepared transactions that lost their clients: nobody else would, and a new slot waits for them."""
    with database.connect(autocommit=True) as connection:
        found = connection.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()").fetchall()
        for (gid,) in found:
            end = sql.SQL(random.choice(["COMMIT PREPARED {}", "ROLLBACK PREPARED {}"]))
            # The client may be alive after all, and quicker.
            with contextlib.suppress(*ENDED_BY_ANOTHER):
                connection.execute(end.format(sql.Literal(gid)))
