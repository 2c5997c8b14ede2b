"""PostgreSQL keeps the laws of an upstream, with keys of an integer, of text in linguistic order, and of both."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from psycopg import sql

from backfill.errors import TransientError
from backfill.options import parse
from backfill.upstream import Bookmark
from backfill.upstream.postgres import PostgresUpstream
from backfill.upstream.postgres.session.retries import RetryPolicy
from integration.database import Database
from integration.databases import Databases
from integration.fixtures.postgres import show_log_of
from integration.servers import LocalServers
from integration.waiting import eventually
from tests.contract.laboratory import Held, KeyValue, Rows, Write, update
from tests.contract.laws import GrowingUpstreamLaws, HidingUpstreamLaws, LosingUpstreamLaws, UpstreamLaws
from tests.contract.laws.moves import STREAM, begun, fill, followed, pinned

PATIENCE = 60.0

NUMBERS = [-(2**63), -(2**53) - 1, -(2**53), *range(-20, 20), 2**53, 2**53 + 1, 2**31, -(2**31), 2**63 - 1]
WORDS = [
    *("", " ", "a", "A", "b", "B", "aa", "Aa", "ä", "Ä", "á", "z", "Z", "é", "e", "E", "f", "ö", "o", "p", "_", "-"),
    *(
        "1",
        "10",
        "9",
        "2",
        "a b",
        "a-b",
        "ab",
        "a_b",
        "'",
        '"',
        "\\",
        "%s",
        "%",
        "$1",
        "{}",
        "NULL",
        "null",
        "\n",
        "\t",
    ),
    *("日本", "🐘", "straße", "strasse", "STRASSE", "co-op", "coop", "x'y\"z", "x" * 300),
]


@dataclass(frozen=True)
class Shape:
    """A table with this key; the key columns are not its first ones."""

    name: str
    columns: str
    key: tuple[str, ...]
    keys: Sequence[KeyValue]

    @property
    def names(self) -> sql.Composed:
        return sql.SQL(", ").join(map(sql.Identifier, self.key))

    @property
    def is_key(self) -> sql.Composed:
        return sql.SQL(" AND ").join(sql.SQL("{} = %s").format(sql.Identifier(name)) for name in self.key)


INTEGER = Shape("integer", "id bigint PRIMARY KEY", ("id",), [(number,) for number in NUMBERS])
TEXT = Shape("text", 'name text COLLATE "en_US.utf8" PRIMARY KEY', ("name",), [(word,) for word in WORDS])
COMPOSITE = Shape(
    "composite",
    'n integer, "Region" text COLLATE "en_US.utf8", PRIMARY KEY ("Region", n)',
    ("Region", "n"),
    [(word, number) for word in WORDS[2:14] for number in (-1, 0, 9, 10)],
)


class Transaction:
    """A session with a transaction in it."""

    def __init__(self, laboratory: PostgresLaboratory, writes: Sequence[Write]) -> None:
        self._session = laboratory.database.connect()
        laboratory.do(self._session, writes)

    def commit(self) -> None:
        self._session.commit()
        self._session.close()

    def roll_back(self) -> None:
        self._session.rollback()
        self._session.close()


class Unseen:
    """A commit that waits for a standby which never answers, until it is told not to wait."""

    def __init__(self, laboratory: PostgresLaboratory, writes: Sequence[Write]) -> None:
        self._database = laboratory.database
        self._session = laboratory.database.connect()
        self._session.execute("SET LOCAL synchronous_commit = on")
        laboratory.do(self._session, writes)
        self._pid = self._session.info.backend_pid
        self._thread = threading.Thread(target=self._session.commit, name="unseen commit", daemon=True)
        self._thread.start()
        self._until(waiting=True)

    def commit(self) -> None:
        self._database.execute("SELECT pg_cancel_backend(%s)", [self._pid])
        self._thread.join(PATIENCE)
        self._until(waiting=False)
        self._session.close()

    def roll_back(self) -> None:
        raise AssertionError("it has been committed")

    def _until(self, *, waiting: bool) -> None:
        """Waits until the session is waiting for the standby, or is not any more."""
        query = "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = %s"
        eventually(lambda: bool(self._database.execute(query, [self._pid])[0][0]) == waiting)


class PostgresLaboratory:
    """A table in a database of its own."""

    def __init__(self, database: Database, shape: Shape, identity: str) -> None:
        self.database = database
        self.shape = shape
        database.execute(f"CREATE TABLE t (v text, {shape.columns}); ALTER TABLE t REPLICA IDENTITY {identity}")
        self.keys: Sequence[KeyValue] = self._ascending(shape.keys)
        self._given = {**database.options, "dbtable": "public.t"}
        self._opened: PostgresUpstream | None = None
        self._reading: list[PostgresUpstream] = []

    def _ascending(self, keys: Sequence[KeyValue]) -> list[KeyValue]:
        with self.database.connect() as connection:
            self.do(connection, [Write(None, key) for key in keys])
            found = connection.execute(sql.SQL("SELECT {key} FROM t ORDER BY {key}").format(key=self.shape.names))
            result = found.fetchall()
            connection.rollback()
        return result

    def open(self) -> PostgresUpstream:
        return self._open({})

    def open_forgiving(self) -> PostgresUpstream:
        return self._open({"failOnDataLoss": "false"})

    def open_impatient(self) -> PostgresUpstream:
        """Like `open`, but the adapter waits for nothing."""
        return self._open({}, RetryPolicy(give_up_after=0.0))

    def _open(self, given: Mapping[str, str], retries: RetryPolicy | None = None) -> PostgresUpstream:
        self.close()
        self._opened = PostgresUpstream(parse({**self._given, **given}), retries)
        return self._opened

    def reading(self, bookmark: Bookmark) -> PostgresUpstream:
        slot = dict(bookmark)["slot"]
        given = {**self._given, "slotName": slot, "startingPosition": "earliest"}
        self._reading.append(PostgresUpstream(parse(given)))
        return self._reading[-1]

    def close(self) -> None:
        for each in (self._opened, *self._reading):
            if each is not None:
                each.close()

    def write(self, *writes: Write) -> None:
        with self.database.connect() as connection:
            self.do(connection, writes)

    def hold(self, *writes: Write) -> Held:
        return Transaction(self, writes)

    def commit_unseen(self, *writes: Write) -> Held:
        return Unseen(self, writes)

    def rows(self) -> Rows:
        with self.database.connect() as connection:
            found = connection.execute(sql.SQL("SELECT {}, v FROM t").format(self.shape.names)).fetchall()
        return {row[:-1]: row[-1] for row in found}

    def lose_changes(self, bookmark: Bookmark) -> None:
        self.database.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s",
            [dict(bookmark)["slot"]],
        )

    def add_column(self, name: str) -> None:
        with self.database.connect() as connection:
            connection.execute(sql.SQL("ALTER TABLE t ADD COLUMN {} text").format(sql.Identifier(name)))

    def do(self, connection: psycopg.Connection[Any], writes: Sequence[Write]) -> None:
        for write in writes:
            if write.key is None:
                statement = sql.SQL("DELETE FROM t WHERE {}").format(self.shape.is_key)
                cursor = connection.execute(statement, write.old)
            elif write.old is None:
                marks = sql.SQL(", ").join([sql.Placeholder()] * len(write.key))
                statement = sql.SQL("INSERT INTO t ({}, v) VALUES ({}, %s)").format(self.shape.names, marks)
                cursor = connection.execute(statement, [*write.key, write.value])
            else:
                sets = sql.SQL(", ").join(sql.SQL("{} = %s").format(sql.Identifier(name)) for name in self.shape.key)
                statement = sql.SQL("UPDATE t SET {}, v = %s WHERE {}").format(sets, self.shape.is_key)
                cursor = connection.execute(statement, [*write.key, write.value, *write.old])
            assert cursor.rowcount == 1


@pytest.fixture(
    params=[(INTEGER, "DEFAULT"), (TEXT, "DEFAULT"), (COMPOSITE, "FULL")],
    ids=lambda param: f"{param[0].name}, {param[1].lower()}",
)
def laboratory(database: Database, request: pytest.FixtureRequest) -> Iterator[PostgresLaboratory]:
    shape, identity = request.param
    with contextlib.closing(PostgresLaboratory(database, shape, identity)) as made:
        yield made


@pytest.fixture(scope="module")
def waiting(local_servers: LocalServers) -> Iterator[Databases]:
    server = local_servers.start({"synchronous_standby_names": "nobody", "synchronous_commit": "local"})
    with contextlib.closing(Databases(server)) as databases:
        yield databases
    server.stop("immediate")


class TestPostgresUpstream(UpstreamLaws, LosingUpstreamLaws, GrowingUpstreamLaws):
    pass


class TestPostgresUpstreamWithAStandbyThatDoesNotAnswer(HidingUpstreamLaws):
    """A commit waits for a standby, in the log but unseen, if its session sets synchronous_commit to on."""

    @pytest.fixture
    def laboratory(self, waiting: Databases, request: pytest.FixtureRequest) -> Iterator[PostgresLaboratory]:
        show_log_of(waiting.server, request.node)
        with (
            waiting.database() as database,
            contextlib.closing(PostgresLaboratory(database, INTEGER, "DEFAULT")) as made,
        ):
            yield made

    def test_what_a_batch_has_and_no_reader_sees_is_reported_with_its_cause(
        self, laboratory: PostgresLaboratory
    ) -> None:
        fill(laboratory, 3)
        upstream = begun(laboratory)
        epoch = pinned(upstream).epoch
        unseen = laboratory.commit_unseen(update(laboratory.keys[0], "unseen"))
        bookmark, later = upstream.bookmark(STREAM), followed(upstream, epoch)
        impatient = laboratory.open_impatient()
        impatient.attach(bookmark, later)
        with pytest.raises(TransientError, match="synchronous_standby_names, and start the query again"):
            impatient.repin(later)
        unseen.commit()
