"""Rows that are taken again while others write: the sink is right at each barrier, before, during and after."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from psycopg import sql

from backfill.__main__ import main
from backfill.adapters import open_upstream
from backfill.errors import KeyTextError
from backfill.options import parse
from backfill.plan import Measure
from backfill.staging.manifest import Manifest, ReadLater
from backfill.upstream.postgres import PostgresUpstream
from backfill.vnode import KeyRange
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.fold import Row
from integration.stream_harness import StreamRun, table_of
from integration.writers import COMPOSITE, TABLE, TEXT, Shape, Writers, total

SIZE = 600
REQUESTS = 5
FEW_BYTES = "6000"
"""What one batch may read of the snapshot: about 60 rows."""

ENOUGH = 100_000
"""Changes that one batch may take."""


@dataclass
class Asked:
    """A request, and which keys have come in batches that were planned after it."""

    condition: sql.Composable
    planned: int
    emitted: set[tuple[object, ...]] = field(default_factory=set)


class Person:
    """Asks for one range after the other, and sees to it that each of its rows comes."""

    def __init__(self, run: StreamRun, shape: Shape, rng: random.Random) -> None:
        self.run, self.shape, self.rng = run, shape, rng
        self.made = self.done = 0
        self.asked: Asked | None = None

    def ask(self) -> None:
        """Runs the command with the ends of a random range of keys, whether they have rows or not."""
        first, last = sorted(self.shape.make(self.rng.randrange(SIZE)) for _ in range(2))
        ends = [self._end("--from", ">=", first), self._end("--to", "<=", last)]
        words = [word for words, _ in ends for word in words]
        assert main(["re-backfill", *words, "--state-dir", self.run.options["stateDir"]]) == 0
        self.asked = Asked(sql.SQL(" AND ").join(condition for _, condition in ends), len(self.run.offsets))
        self.made += 1

    def _end(self, word: str, comparison: str, key: tuple[object, ...]) -> tuple[list[str], sql.Composable]:
        if self.rng.random() < 0.3:
            return [], sql.SQL("true")
        columns, values = (
            sql.SQL(", ").join(map(sql.Identifier, self.shape.key)),
            sql.SQL(", ").join(map(sql.Literal, key)),
        )
        condition = sql.SQL("({}) {} ({})").format(columns, sql.SQL(comparison), values)
        return [f"{word}={value}" for value in key], condition

    def see(self, rows: list[Row]) -> None:
        """Looks at a batch; once the request is done, each of its rows must have been read again or changed."""
        if self.asked is None or self.run.committed <= self.asked.planned:
            return
        kinds = ("insert", "update_postimage")
        self.asked.emitted |= {self.key(row) for row in rows if row["_change_type"] in kinds}
        again = self.run.barrier().again
        if again is None or not self.taken_up() or again.frontier is not None or self.given_up():
            return
        with self.run.database.connect() as connection:
            wanted = set(self.run.table(connection, self.asked.condition)) & set(self.run.fold.rows)
        assert wanted <= self.asked.emitted, (
            f"done, and these have not come: {sorted(map(str, wanted - self.asked.emitted))[:3]}"
        )
        self.asked = None
        self.done += 1

    def taken_up(self) -> bool:
        again = self.run.barrier().again
        control = self.run.stream()._control
        return again is not None and bool(control.requests) and again.request == control.requests[-1].id

    def given_up(self) -> bool:
        manifest = self._manifest()
        return manifest is not None and bool(manifest.given_up)

    def ahead(self) -> bool:
        """Whether some keys have been read at a later state than the barrier's, in the first backfill."""
        manifest = self._manifest()
        later = manifest is not None and any(isinstance(item.reading, ReadLater) for item in manifest.splits)
        return later or bool(self.run.barrier().ahead)

    def _manifest(self) -> Manifest | None:
        barrier = self.run.barrier()
        return self.run.stream()._attachment._files(barrier).manifest()

    def key(self, row: Row) -> tuple[object, ...]:
        return tuple(row[name] for name in self.run.fold.key)


def batch(run: StreamRun, person: Person, rng: random.Random) -> None:
    """Runs a batch; now and then some or all of its chunks are lost with the driver before they are staged."""
    if not run.plan(20 if rng.random() < 0.1 else ENOUGH):
        return
    require = run.judge()
    if rng.random() < 0.25:
        for part in run.parts():
            if rng.random() < 0.5:
                run.read_part(part)
        run.restart(numPartitions=rng.choice("123"))
        # What was lost of a first backfill is read at a later state than the judge has looked at.
        require = require if run.backfilled else lambda: None
    rows = run.read()
    run.commit(rows)
    require()
    person.see(rows)


@pytest.mark.parametrize("shape", [TEXT, COMPOSITE], ids=lambda shape: shape.name)
def test_the_sink_is_right_at_every_barrier_while_rows_are_taken_again(
    database: Database, start_stream: StartStream, shape: Shape, rng: random.Random
) -> None:
    shape.create(database, SIZE, identity="DEFAULT")
    run = start_stream(TABLE, key=shape.sink_key, maxBytesPerTrigger=FEW_BYTES, **shape.options)
    run.restart(vnodeCount="7", numPartitions="3")
    run.select = shape.select
    run.judged_batch(ENOUGH)
    ((constant,),) = database.execute(f"SELECT sum(balance)::bigint FROM {TABLE}")
    person = Person(run, shape, rng)
    person.ask()
    with Writers(database, shape, SIZE, rng, clients=2):
        while person.done < REQUESTS:
            batch(run, person, rng)
            if run.backfilled and not person.ahead():
                assert total(run.fold.rows) == constant
            # Now and then the stream goes back to following the log alone.
            if person.asked is None and rng.random() < 0.5:
                person.ask()
    run.finish()
    assert run.judged >= REQUESTS


def test_what_is_no_key_or_nothing_to_stop_is_refused_and_changes_nothing(
    database: Database, start_stream: StartStream, capsys: pytest.CaptureFixture[str]
) -> None:
    table_of(database, 20)
    run = start_stream()
    state = ["--state-dir", run.options["stateDir"]]
    run.plan()
    for words, reason in (
        (["--from", "seven"], "the value for the key column id is not of its type, int64"),
        (["--from", "1", "2"], "a key has a value for each of (id), 1 in all; got 2"),
        (["--from", "15", "--to", "3"], "the range ends before it begins"),
        (["--stop"], "no rows are being read again, and no request waits"),
        (["--stop", "--to", "7"], "leave out --from and --to"),
    ):
        assert main(["re-backfill", *words, *state]) == 1
        assert reason in capsys.readouterr().err
    assert not (Path(run.options["stateDir"]) / "control.json").exists()
    assert main(["re-backfill", *state]) == 0
    assert "all rows are read again when the table has been read for the first time" in capsys.readouterr().out
    assert main(["re-backfill", "--stop", *state]) == 0
    assert main(["re-backfill", "--to", "3", *state]) == 0
    run.catch_up()
    assert run.fold.counts == {"insert": 23}
    run.finish()


def test_the_index_of_the_key_may_have_numbers_in_another_order(database: Database, start_stream: StartStream) -> None:
    database.execute(
        """
        CREATE FUNCTION turned(int, int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT pg_catalog.btint4cmp($2, $1)';
        CREATE OPERATOR CLASS downwards FOR TYPE int USING btree AS OPERATOR 1 >, OPERATOR 2 >=, OPERATOR 3 =,
            OPERATOR 4 <=, OPERATOR 5 <, FUNCTION 1 turned(int, int)
        """
    )
    database.execute("CREATE TABLE t (id int NOT NULL, v text); CREATE UNIQUE INDEX i ON t (id downwards)")
    database.execute("ALTER TABLE t REPLICA IDENTITY USING INDEX i; INSERT INTO t SELECT generate_series(1, 40), 'v'")
    run = start_stream()
    run.catch_up()
    assert main(["re-backfill", "--from", "20", "--to", "10", "--state-dir", run.options["stateDir"]]) == 0
    run.catch_up()
    assert run.fold.counts == {"insert": 40 + 11}
    run.finish()


def test_whoever_asks_for_what_only_the_database_knows_to_be_no_key_does_not_wait_for_it(
    database: Database, start_stream: StartStream, capsys: pytest.CaptureFixture[str]
) -> None:
    database.execute("CREATE TYPE mood AS ENUM ('good', 'bad'); CREATE TABLE t (id mood PRIMARY KEY)")
    database.execute("INSERT INTO t VALUES ('bad')")
    run = start_stream()
    run.catch_up()
    state = ["--state-dir", run.options["stateDir"]]
    assert main(["re-backfill", "--from", "ugly", *state]) == 0
    run.catch_up()
    capsys.readouterr()
    assert main(["status", "--json", *state]) == 0
    assert json.loads(capsys.readouterr().out)["requests_waiting"] == 0
    assert main(["re-backfill", "--from", "bad", *state]) == 0
    assert "the rows from bad are read again from the next batch on" in capsys.readouterr().out
    run.catch_up()
    assert run.fold.counts == {"insert": 2}


def test_keys_of_each_type_name_the_rows_between_them(database: Database) -> None:
    """A key may be given in any form that the database reads; the range has the database's own form."""
    kinds: dict[str, tuple[str, str, str | None]] = {
        "numeric": ("0.5", "1e1", "x"),
        "timestamptz": ("2026-01-01", "2026-01-02 00:00:00+00", "2026-13-01"),
        "uuid": ("00000000-0000-0000-0000-000000000001", "{A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11}", "7"),
        "bytea": (r"\x00", r"\xff00", r"\x0"),
        "character(3)": ("a", "b ", None),
        "ltree": ("a.b", "a.c", "a..b"),  # An error of its own syntax, says its input function.
    }
    database.execute("CREATE EXTENSION ltree")
    for number, (kind, (first, last, wrong)) in enumerate(kinds.items()):
        name = f"t{number}"
        database.execute(f"CREATE TABLE {name} (id {kind} PRIMARY KEY)")
        database.execute(f"INSERT INTO {name} VALUES (%s), (%s)", [first, last])
        upstream = open_upstream(parse({**database.options, "dbtable": name}))
        assert isinstance(upstream, PostgresUpstream)
        pin = upstream.snapshot_epoch(None, max_changes=9).pin
        assert pin is not None
        whole = upstream.range_of((first,), (last,))
        (extent,) = upstream.measure(pin, [Measure(whole, 1)])
        assert whole == KeyRange(None, upstream.range_of(None, (last,)).upto)
        assert upstream.range_of((last,), None).after == extent.last
        (extent,) = upstream.measure(pin, [Measure(whole, 9)])
        assert extent.row_count == 2
        if wrong is not None:
            with pytest.raises(KeyTextError, match="a value does not fit the table's key"):
                upstream.range_of((wrong,), None)
        with pytest.raises(KeyTextError, match=r"\(id .+; 22021\)"):
            upstream.range_of(("\0",), None)
        upstream.close()
