"""A keyed sink that gets changes of rows that it never had, and a judge of what it must hold with `snapshotFilter`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql

from backfill.upstream import Pin
from backfill.upstream.postgres.snapshot.entering import Token
from integration.fold import Fold, Row, Rows
from integration.stream_harness import StreamRun
from integration.writers import TABLE

JOURNAL = f"""
    CREATE TABLE journal (seq bigint GENERATED ALWAYS AS IDENTITY, id bigint);
    CREATE FUNCTION journal() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF TG_OP <> 'INSERT' THEN INSERT INTO journal (id) VALUES (old.id); END IF;
        IF TG_OP <> 'DELETE' THEN INSERT INTO journal (id) VALUES (new.id); END IF;
        RETURN NULL;
    END $$;
    CREATE TRIGGER journal AFTER INSERT OR UPDATE OR DELETE ON {TABLE} FOR EACH ROW EXECUTE FUNCTION journal();
"""


class KeyedSink(Fold):
    """Takes an update as the row's new values, and deletes what may not be there."""

    def _apply(self, row: Row, *, again: bool) -> None:
        key = tuple(row[name] for name in self.key)
        if row["_change_type"] != "insert" and key not in self.rows:
            if row["_change_type"] == "update_preimage":
                return
            self.rows[key] = {}
        super()._apply(row, again=again)


@dataclass
class Judge:
    """Tells at each pinned state what the sink must hold once the batch that ends there is committed."""

    run: StreamRun
    condition: str
    changed: set[tuple[Any, ...]] = field(default_factory=set)
    """Keys of rows that have been changed since they were read."""

    seen: set[int] = field(default_factory=set)
    outside: int = 0

    def batch(self, max_rows: int) -> None:
        if not self.run.plan(max_rows):
            return
        pin = self.run.pin
        expected = None if pin is None else self.expected(pin)
        self.run.commit(self.run.read())
        if expected is not None:
            self.require(expected)

    def require(self, expected: Rows) -> None:
        self.run.judged += 1
        self.run._require_sink(expected)

    def expected(self, pin: Pin | None) -> Rows:
        """What the sink must hold as of the pin; without one, as of now, when all is read and nobody writes."""
        with self.run.database.connect() as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            everything: sql.Composable = sql.SQL("true")
            before = now = everything
            if pin is not None:
                connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(Token.parse(pin.token).name))
                end = self.run.barrier(len(self.run.offsets)).progress
                now = self.run._covered(connection, getattr(end, "coverage", ()))
                before = sql.SQL("false")
                if self.run.committed:
                    before = self.run._covered(connection, self.run.coverage)
            self._read_journal(connection, before)
            rows = self.run.table(connection, now)
            holds = sql.SQL("({}) AND ({}\n)").format(now, sql.SQL(self.condition))
            chosen = self.run.table(connection, holds)
        self.outside += sum(key in self.changed and key not in chosen for key in rows)
        return {key: row for key, row in rows.items() if key in chosen or key in self.changed}

    def _read_journal(self, connection: psycopg.Connection[Any], before: sql.Composable) -> None:
        """Adds to `changed` each key whose row had been read before the state in which a change of it first shows."""
        found = connection.execute(sql.SQL("SELECT seq, id, ({}) FROM journal").format(before)).fetchall()
        self.changed |= {(key,) for number, key, read in found if number not in self.seen and read}
        self.seen = {number for number, _, _ in found}


def backfill_to_end(run: StreamRun, max_rows: int) -> None:
    """Reads the snapshot without judging it, because `StreamRun` would expect all rows in the sink."""
    while not run.committed or not run.backfilled:
        assert run.batch(max_rows)
