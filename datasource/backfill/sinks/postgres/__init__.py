"""A keyed table of PostgreSQL that follows a stream, one transaction for each batch.

In that transaction the rows go by COPY into a temporary table, deleted keys are deleted, all others are upserted, and
the batch is recorded in the table `backfill_batches` of the target's schema:

| query | target | batch_id | row_count | version | sequence | applied_at | commit_timestamp | target_oid |
|---|---|---|---|---|---|---|---|---|
| orders | "public"."orders_copy" | 41 | 300 | 24051624 | 180388626432 | … | 1772366404000000 | 16402 |

So readers of the target see the source's table as of the end of one batch and nothing in between, and a batch that
Spark runs again changes nothing.

merge       from the last rows of a batch to the target
record      the batches that were applied
target      the table that batches are applied to
failures    what goes wrong with it, as our errors
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from backfill.adapters import needing
from backfill.sinks import Batch
from backfill.sinks.applied import AppliedBatch, FilledTable, named
from backfill.sinks.compacted import CompactedBatch, compacted, key_of

with needing("writing to PostgreSQL", "postgres"):
    from backfill.sinks.postgres.failures import about_target
    from backfill.sinks.postgres.merge import merge
    from backfill.sinks.postgres.record import forget, last_applied, make_record, noting, without_rows
    from backfill.sinks.postgres.target import Target, execute, find_target, is_empty, lock_target
    from backfill.upstream.postgres.session.arrow_session import ArrowSession
    from backfill.upstream.postgres.session.connection import Connector, together
    from backfill.upstream.postgres.session.failures import translating
    from backfill.upstream.postgres.session.retries import RetryPolicy

LOCK_TIMEOUT: Final = "30s"
"""How long a transaction waits for a lock on the target, or on a row of it, before it is begun anew: so long that a
batch does not write its rows again and again while others write theirs."""

_BEGIN: Final = f"""
    BEGIN;
    SET LOCAL lock_timeout = '{LOCK_TIMEOUT}';
    SELECT pg_catalog.set_config('synchronous_commit', 'local', true)
    WHERE pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) 'off'
"""
"""Three statements, which are sent together. Spark does not give a batch again once it has noted that it was applied,
so a crash of the server must not lose it.
"""

__all__ = ["PostgresSink", "apply_to", "start_over"]


def apply_to(
    *, url: str, table: str, key: Sequence[str], query: str, user: str = "", password: str = ""
) -> Callable[[Batch, int], None]:
    """A function for `foreachBatch` that makes `table`, which has to exist, follow the stream.

    `key` are the columns of a primary key or unique index of it, and the source's key. `query` names the query in the
    record of batches: one name for each checkpoint. The rows are those of the stream, with its metadata columns; their
    other columns must be columns of the table, and are cast to its types. Connection errors, and locks of others, are
    tried again for two minutes. A batch passes through the driver's memory; `maxBytesPerTrigger` and
    `maxRowsPerTrigger` bound what that takes. Every batch has to be applied, also one without rows.
    """
    connector = Connector.of(url, user=user, password=password)
    return PostgresSink(connector, table, key_of(key), named(query), RetryPolicy())


def start_over(*, url: str, table: str, query: str, user: str = "", password: str = "") -> None:
    """Empties the table and forgets which batches of the query it has, for a new checkpoint under the same name.

    Raises StateError where the table has rows but knows no batch of such a query. Connection errors, and locks of
    others, are tried again for two minutes.
    """
    connector = Connector.of(url, user=user, password=password)
    RetryPolicy().run(lambda: _start_over(connector, table, named(query)))


def _start_over(connector: Connector, table: str, query: str) -> None:
    with translating(about_target), connector.arrow_session() as session:
        target = _begin(session, table, (), writes=True)
        is_known = forget(session, target, query)  # Waits for a driver that is in a batch: its rows are to go as well.
        _filling(session, target, query).require_known(is_known=is_known)
        execute(session, "DELETE FROM {rows}", rows=target.rows)
        session.execute("COMMIT")


@dataclass(frozen=True, slots=True)
class PostgresSink:
    """What `apply_to` returns. Picklable, as Spark Connect wants it."""

    connector: Connector
    table: str
    key: tuple[str, ...]
    query: str
    retries: RetryPolicy

    def __call__(self, batch: Batch, batch_id: int) -> None:
        rows = batch.toArrow()
        last = compacted(rows, self.key, f"the table {self.table}")
        now = AppliedBatch.of(batch_id, rows)
        self.retries.run(lambda: self._apply(now, last))

    def _apply(self, now: AppliedBatch, last: CompactedBatch) -> None:
        with translating(about_target), self.connector.arrow_session() as session:
            target = _begin(session, self.table, self.key, writes=last.emptied or last.rows.num_rows > 0)
            filling = _filling(session, target, self.query)
            before = last_applied(session, target, self.query)
            way_out = partial(without_rows, target, self.query)
            if filling.is_new(before, now, leaves_rows=last.leaves_rows, way_out=way_out):
                left = merge(session, target, self.key, last)
                session.carry_out(together(*left, noting(target, self.query, now), "COMMIT"))
            else:
                session.execute("COMMIT")


def _filling(session: ArrowSession, target: Target, query: str) -> FilledTable:
    return FilledTable(target.text, query, lambda: is_empty(session, target))


def _begin(session: ArrowSession, table: str, key: Sequence[str], *, writes: bool) -> Target:
    """Begins the transaction of a batch, with the record made. If it `writes`, nobody can alter the table meanwhile."""
    session.carry_out(_BEGIN)
    if writes:
        lock_target(session, table)
    target = find_target(session, table, key)
    if target.has_record:
        return target
    make_record(session, target)
    # Else the first batches of all tables of the schema would wait for one another.
    session.execute("COMMIT")
    return _begin(session, table, key, writes=writes)
