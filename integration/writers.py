"""Clients that write to a table while it is streamed, in all the ways in which transactions can end.

All of them move amounts between rows and create none: the sum over the column `balance` is the same in every
consistent state of the table. Which rows exist is up to chance; the keys come from a finite universe, so that they
meet again and again, and one client's key is soon another's.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from random import Random
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg import sql

from integration.database import Database, Row

TABLE = "accounts"
OPENING_BALANCE = 100

PAUSE = 0.01
"""The most seconds between two transactions of a client: the clients share the machine with what they test."""


@dataclass(frozen=True)
class Shape:
    """A table of accounts with this kind of key, and the universe of its keys: `make` gives key number n."""

    name: str
    definition: str
    key: tuple[str, ...]
    types: tuple[str, ...]
    make: Callable[[int], tuple[object, ...]]
    select: str
    sink_key: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=dict)

    def create(self, database: Database, size: int, *, identity: str) -> None:
        """Makes the table with two of every three keys of a universe of `size`."""
        database.execute(
            f"CREATE TABLE {TABLE} (note text, ref uuid NOT NULL DEFAULT gen_random_uuid(), balance bigint NOT NULL, "
            f"{self.definition}, PRIMARY KEY ({', '.join(self.key)})); ALTER TABLE {TABLE} REPLICA IDENTITY {identity}"
        )
        insert = f"INSERT INTO {TABLE} (note, balance, {', '.join(self.key)}) VALUES ('opened', %s, {self.value})"
        with database.connect() as connection:
            connection.cursor().executemany(
                insert, [(OPENING_BALANCE, *self.make(n)) for n in range(size) if n % 3 != 0]
            )
        database.execute(f"ANALYZE {TABLE}")

    @property
    def value(self) -> str:
        """A key as a list of parameters."""
        return ", ".join(f"%s::{name}" for name in self.types)

    @property
    def is_key(self) -> str:
        return f"({', '.join(self.key)}) = ({self.value})"


def _word(n: int) -> str:
    """Words whose order is not that of their bytes."""
    return f"{'aBéZ_1 ö-'[n % 9]}{n % 97}{'xY'[n % 2]}{n}"


def _number(n: int) -> Decimal:
    special = {1: Decimal("NaN"), 2: Decimal("Infinity"), 4: Decimal("-Infinity"), 5: Decimal("0.000")}
    return special.get(n, (Decimal(n) - 900) / 8 + Decimal("0.01"))


BIGINT = Shape(
    name="bigint",
    definition="id bigint",
    key=("id",),
    types=("bigint",),
    make=lambda n: (n * 11 - 5000,),
    select="note, ref::text, balance, id",
    sink_key=("id",),
)
TEXT = Shape(
    name="text",
    definition='id text COLLATE "en_US.utf8"',
    key=("id",),
    types=("text",),
    make=lambda n: (_word(n),),
    select="note, ref::text, balance, id",
    sink_key=("id",),
)
COMPOSITE = Shape(
    name="composite",
    definition='b text COLLATE "en_US.utf8", a int',
    key=("a", "b"),
    types=("int", "text"),
    make=lambda n: (n % 3, _word(n)),
    select="note, ref::text, balance, b, a",
    sink_key=("a", "b"),
)
UUID = Shape(
    name="uuid",
    definition="id uuid",
    key=("id",),
    types=("uuid",),
    make=lambda n: (uuid.UUID(int=n * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128),),
    select="note, ref::text, balance, id::text",
    sink_key=("id",),
)
NUMERIC = Shape(
    name="numeric",
    definition="id numeric",
    key=("id",),
    types=("numeric",),
    make=lambda n: (_number(n),),
    select="note, ref::text, balance, id::text",
    sink_key=("id",),
)
HIDDEN = replace(
    COMPOSITE,
    name="key left out of the output",
    select="balance, ref::text",
    sink_key=("ref",),
    options={"columns": "balance,ref"},
)
"""The sink tells rows apart by a column outside the key, so only identity FULL says which row was deleted."""


class Client:
    """One connection that writes. Errors that clients cause each other end a savepoint or a transaction."""

    def __init__(self, database: Database, shape: Shape, size: int, random: Random, *, wait: str = "on") -> None:
        """`wait` is what a commit waits for: the setting `synchronous_commit`."""
        self._shape, self._size, self._random = shape, size, random
        self._connection = database.connect(autocommit=True)
        self._connection.execute(f"SET synchronous_commit = {wait}")
        # What clients do to each other is no news to whoever reads the server's log after a failure.
        self._connection.execute("SET log_min_messages = fatal")
        # Far below the time after which the server looks for deadlocks.
        self._connection.execute("SET lock_timeout = '30ms'")
        self.pid = self._connection.info.backend_pid

    def close(self) -> None:
        self._connection.close()

    def _execute(self, query: str, *parameters: object) -> psycopg.Cursor[Row]:
        return self._connection.execute(query, parameters)

    # -- transactions ----------------------------------------------------------------------------------------------

    def transaction(self) -> None:
        self.begin()
        self.write(self._random.choice([1, 1, 2, 5]))
        self.end()

    def begin(self) -> None:
        self._execute("BEGIN")
        if self._random.random() < 0.3:
            self._execute("SET LOCAL synchronous_commit = off")

    def write(self, count: int = 1) -> int:
        """Makes writes, each in a savepoint that is rolled back, released or left to the end; returns how many stay."""
        stay = 0
        for _ in range(count):
            self._execute("SAVEPOINT before")
            try:
                done = self._random.choice(OPERATIONS)(self)
            except psycopg.Error as error:
                if self._connection.closed:
                    # Whatever error the server gave while it went down.
                    raise psycopg.OperationalError("the connection is lost") from error
                if error.sqlstate not in EXPECTED:
                    raise
                done = False
            if not done or self._random.random() < 0.15:
                self._execute("ROLLBACK TO before")
                continue
            stay += 1
            if self._random.random() < 0.5:
                self._execute("RELEASE before")
        return stay

    def commit_something(self) -> None:
        self._execute("BEGIN")
        while not self.write():
            pass
        self._execute("COMMIT")

    def end(self) -> None:
        chance = self._random.random()
        if chance < 0.1:
            self._execute("ROLLBACK")
        elif chance < 0.2:
            self._end_in_two_phases()
        else:
            self._execute("COMMIT")

    def _end_in_two_phases(self) -> None:
        name = sql.Literal(uuid.uuid4().hex).as_string(None)
        self._execute(f"PREPARE TRANSACTION {name}")
        end = "ROLLBACK" if self._random.random() < 0.3 else "COMMIT"
        self._execute(f"{end} PREPARED {name}")

    # -- single writes; each keeps the sum, and returns whether it did what it wanted ------------------------------

    def _key(self) -> tuple[object, ...]:
        return self._shape.make(self._random.randrange(self._size))

    def _add(self, key: tuple[object, ...], amount: int) -> bool:
        query = f"UPDATE {TABLE} SET balance = balance + %s, note = 'moved' WHERE {self._shape.is_key}"
        return self._execute(query, amount, *key).rowcount == 1

    def _insert(self, key: tuple[object, ...]) -> bool:
        columns = ", ".join(self._shape.key)
        query = f"INSERT INTO {TABLE} (note, balance, {columns}) VALUES (%s, 0, {self._shape.value})"
        return self._execute(query, self._random.choice([None, "new"]), *key).rowcount == 1

    def _delete(self, key: tuple[object, ...]) -> int | None:
        """Returns the balance that has to go elsewhere."""
        row = self._execute(f"DELETE FROM {TABLE} WHERE {self._shape.is_key} RETURNING balance", *key).fetchone()
        return None if row is None else int(row[0])

    def transfer(self) -> bool:
        amount = self._random.randrange(1, 50)
        return self._add(self._key(), -amount) and self._add(self._key(), amount)

    def spread(self) -> bool:
        """One row gives to every row of a part of the table, by one statement."""
        part = self._random.randrange(64)
        query = f"UPDATE {TABLE} SET balance = balance + 1 WHERE hashtext(ref::text) & 63 = %s"
        return self._add(self._key(), -self._execute(query, part).rowcount)

    def open(self) -> bool:
        key = self._key()
        return self._insert(key) and (self._random.random() < 0.7 or (self._add(self._key(), -7) and self._add(key, 7)))

    def close_account(self) -> bool:
        balance = self._delete(self._key())
        return balance is not None and (balance == 0 or self._add(self._key(), balance))

    def reopen(self) -> bool:
        """The same key goes and comes back within the transaction."""
        key = self._key()
        balance = self._delete(key)
        return balance is not None and self._insert(key) and self._add(key, balance)

    def move(self) -> bool:
        """A row's key changes, to one far away or to the next one."""
        n = self._random.randrange(self._size)
        to = self._random.choice([self._key(), self._shape.make((n + 1) % self._size)])
        columns = ", ".join(self._shape.key)
        query = f"UPDATE {TABLE} SET ({columns}) = ROW({self._shape.value}) WHERE {self._shape.is_key}"
        return self._execute(query, *to, *self._shape.make(n)).rowcount == 1

    def move_and_back(self) -> bool:
        return self.move() and self.move()

    def nothing_new(self) -> bool:
        return self._execute(f"UPDATE {TABLE} SET note = note WHERE {self._shape.is_key}", *self._key()).rowcount == 1


OPERATIONS: tuple[Callable[[Client], bool], ...] = (
    Client.transfer,
    Client.transfer,
    Client.transfer,
    Client.spread,
    Client.open,
    Client.open,
    Client.close_account,
    Client.reopen,
    Client.move,
    Client.move,
    Client.move_and_back,
    Client.nothing_new,
)

EXPECTED = ("23505", "55P03", "40P01")
"""A key that exists already, a row somebody else holds, a deadlock."""


class InThreads:
    """Runs bodies, each in a thread of its own, until the `with` block ends; there the first error of one is raised.

    Bodies end when `stopped` is set.
    """

    def __init__(self, bodies: Iterable[Callable[[], None]]) -> None:
        self.stopped = threading.Event()
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(body,), daemon=True) for body in bodies]

    def _run(self, body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:  # noqa: BLE001 - it is raised again in the test's own thread
            self._errors.append(error)

    def clear_up(self) -> None:
        """Does what is left when all have ended and the block has no error of its own."""

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stopped.set()
        for thread in self._threads:
            thread.join()
        if error is None:
            self.clear_up()
            if self._errors:
                raise self._errors[0]


class Writers(InThreads):
    """Clients that write."""

    def __init__(
        self, database: Database, shape: Shape, size: int, random: Random, *, clients: int, wait: str = "on"
    ) -> None:
        own = [Random(random.getrandbits(64)) for _ in range(clients)]
        super().__init__(partial(self._write, Client(database, shape, size, each, wait=wait), each) for each in own)

    def _write(self, client: Client, random: Random) -> None:
        while not self.stopped.wait(random.uniform(0, PAUSE)):
            client.transaction()
        client.close()


def total(rows: dict[tuple[Any, ...], dict[str, Any]]) -> int:
    return sum(int(row["balance"]) for row in rows.values())
