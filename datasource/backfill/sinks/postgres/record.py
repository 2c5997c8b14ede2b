"""The record of the batches that were applied, beside the target; its columns are shown in `__init__`."""

from __future__ import annotations

from typing import Any, Final

from psycopg import sql

from backfill.errors import StateError, TableError
from backfill.sinks.applied import BEGIN_ANEW, AppliedBatch
from backfill.sinks.postgres.target import Target, composed, execute
from backfill.upstream.postgres.session.arrow_session import ArrowSession

_CREATE_RECORD: Final = """
    CREATE TABLE IF NOT EXISTS {record} (
        query text, target text, batch_id int8 NOT NULL, row_count int8 NOT NULL, version int8, sequence int8,
        applied_at timestamptz NOT NULL DEFAULT pg_catalog.now(), commit_timestamp int8, target_oid int8,
        PRIMARY KEY (query, target))
"""

_LOCK_ROW: Final = """
    INSERT INTO {record} (query, target, batch_id, row_count) VALUES ({query}, {name}, -1, 0) ON CONFLICT DO NOTHING;
    SELECT 1 FROM {record} WHERE query = {query} AND target = {name} FOR UPDATE
"""
"""Two statements, which are sent together."""

_MOST_TAKEN: Final = 10
"""How often `forget` may have taken a query's row away again before it is read; most often it has not once."""


def make_record(session: ArrowSession, target: Target) -> None:
    """Makes the record; others who are about to do so wait for the transaction."""
    session.execute("SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtext('backfill_batches'))")
    session.execute("SET LOCAL client_min_messages = warning")
    execute(session, _CREATE_RECORD, record=target.record)


def last_applied(session: ArrowSession, target: Target, query: str) -> AppliedBatch | None:
    """The last batch of the query. Until the transaction ends, no other one can apply a batch of it.

    Raises StateError where another table has the target's name since that batch.
    """
    *applied, oid = _locked(session, target, query)
    last = AppliedBatch(*applied)
    if last.batch_id < 0:
        return None
    if oid != target.oid:
        mended = _setting(target, query, "target_oid", target.oid)
        raise StateError(
            f"the table {target.text} was dropped and made again since the query {query!r} applied batch "
            f"{last.batch_id} (it had OID {oid}, and has {target.oid}), or it was restored from a dump. If it has the "
            f"rows of all batches up to that one, run {mended}; else {BEGIN_ANEW}"
        )
    return last


def without_rows(target: Target, query: str, _last: AppliedBatch, now: AppliedBatch) -> str:
    """What to do where the batches in between had no rows and were not given to the sink."""
    return f"run {_setting(target, query, 'batch_id', now.batch_id - 1)}"


def forget(session: ArrowSession, target: Target, query: str) -> bool:
    """Removes what is noted of the query; returns whether it had applied a batch. Waits for a transaction that applies
    one; others wait until this one ends.
    """
    batch_id, *_ = _locked(session, target, query)
    execute(session, "DELETE FROM {record} WHERE query = {query} AND target = {name}", **_names(target, query))
    return bool(batch_id >= 0)


def _locked(session: ArrowSession, target: Target, query: str) -> tuple[Any, ...]:
    """The query's row in the record, locked until the transaction ends; made, with a negative batch id, where there was
    none.
    """
    names = _names(target, query)
    for _ in range(_MOST_TAKEN):
        session.carry_out(composed(_LOCK_ROW, **names))
        execute(
            session,
            "SELECT batch_id, row_count, version, sequence, commit_timestamp, target_oid FROM {record} "
            "WHERE query = {query} AND target = {name}",
            **names,
        )
        row = session.fetchone()
        if row is not None:  # Else `forget` has taken it away in between.
            return row
    raise TableError(
        f"a row that is inserted into {target.record.as_string(None)}, where batches are recorded, is not there "
        "afterwards. Drop the rule or trigger of that table that removes it, and start the query again"
    )


def _setting(target: Target, query: str, column: str, value: int) -> str:
    """The statement by which a person corrects what is noted."""
    statement = sql.SQL("UPDATE {record} SET {column} = {value} WHERE query = {query} AND target = {name}")
    parts = {"column": sql.Identifier(column), "value": sql.Literal(value)}
    return statement.format(**_names(target, query), **parts).as_string(None)


def _names(target: Target, query: str) -> dict[str, sql.Composable]:
    return {"record": target.record, "query": sql.Literal(query), "name": sql.Literal(target.text)}


def noting(target: Target, query: str, now: AppliedBatch) -> str:
    """The statement that notes the batch as the query's last; `last_applied` came before it in the same transaction."""
    return composed(
        "UPDATE {record} SET batch_id = {batch_id}, row_count = {rows}, version = {version}, sequence = {sequence}, "
        "applied_at = pg_catalog.now(), commit_timestamp = {timestamp}, target_oid = {oid} "
        "WHERE query = {query} AND target = {name}",
        **_names(target, query),
        batch_id=sql.Literal(now.batch_id),
        rows=sql.Literal(now.rows),
        version=sql.Literal(now.version),
        sequence=sql.Literal(now.sequence),
        timestamp=sql.Literal(now.timestamp),
        oid=sql.Literal(target.oid),
    )
