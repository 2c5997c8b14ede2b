"""From the last rows of a batch to the target: COPY into a temporary table, then DELETE and INSERT … ON CONFLICT."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from psycopg import sql

from backfill.errors import OptionsError, UnchangedToastError, UnsupportedTypeError
from backfill.sinks.last_rows import LastRows
from backfill.sinks.postgres.target import Target, execute
from backfill.sinks.staged import DELETED, column_name, kept_name, staged
from backfill.upstream.postgres.arrow_session import ArrowSession

_STAGED: Final = "backfill_batch"


def merge(session: ArrowSession, target: Target, key: Sequence[str], last: LastRows) -> None:
    if last.emptied:
        # Not TRUNCATE, which readers of the table would wait for, and see too early.
        execute(session, "DELETE FROM {target}", target=target.name)
    if not last.rows.num_rows:
        return
    names = _written(target, last.rows.column_names)
    _require_types(last.rows.select(names).schema)
    session.ingest(_STAGED, staged(last, names))
    values = {name: _value(target, name, at) for at, name in enumerate(names)}
    parts = {
        "target": target.name,
        "staged": sql.Identifier("pg_temp", _STAGED),
        "deleted": sql.Identifier("s", DELETED),
        "same": sql.SQL(" AND ").join(
            sql.SQL("{} = {}").format(sql.Identifier("t", name), values[name]) for name in key
        ),
    }
    if last.deleted.any():
        execute(session, "DELETE FROM {target} t USING {staged} s WHERE {deleted} AND {same}", **parts)
    if not last.deleted.all():
        _require_kept(session, parts, key, last)
        _upsert(session, key, last, values, parts)
    execute(session, "DROP TABLE {staged}", **parts)


def _written(target: Target, names: Sequence[str]) -> list[str]:
    unknown = [name for name in names if name not in target.types and name not in target.generated]
    if unknown:
        raise OptionsError(
            f"the table {target.text} has no column {', '.join(unknown)}. Add it, or leave it out of the batch with "
            "the stream's option columns"
        )
    return [name for name in names if name in target.types]


def _require_types(columns: pa.Schema) -> None:
    """Refuses what the driver cannot write: it would say so with an error that looks like a lost connection."""
    for column in columns:
        element = column.type.value_type if pa.types.is_list(column.type) else column.type
        if pa.types.is_nested(element):
            raise UnsupportedTypeError(
                f"column {column.name!r} is a {column.type}, which cannot be copied into PostgreSQL. Make it a string "
                "before foreachBatch, with to_json, for a column of type jsonb"
            )


def _value(target: Target, name: str, at: int) -> sql.Composable:
    # The type's name is the server's own.
    type_name = sql.SQL(target.types[name])
    return sql.SQL("CAST({} AS {})").format(sql.Identifier("s", column_name(at)), type_name)


def _require_kept(session: ArrowSession, parts: dict[str, sql.Composable], key: Sequence[str], last: LastRows) -> None:
    """Where the target's value stays, the target has the row."""
    if not last.kept:
        return
    kept = sql.SQL(" OR ").join(sql.Identifier("s", kept_name(at)) for at in range(len(last.kept)))
    execute(
        session,
        "SELECT EXISTS (SELECT FROM {staged} s LEFT JOIN {target} t ON {same} "
        "WHERE NOT {deleted} AND ({kept}) AND {absent} IS NULL)",
        **parts,
        kept=kept,
        absent=sql.Identifier("t", key[0]),
    )
    if session.fetchone() == (True,):
        raise UnchangedToastError(
            f"an update left out the large unchanged value of column {' or '.join(last.kept)}, and the target has no "
            "row to take it from. Was the target emptied, or begun with startupMode=latest? Fill it and start over"
        )


def _upsert(
    session: ArrowSession,
    key: Sequence[str],
    last: LastRows,
    values: dict[str, sql.Composable],
    parts: dict[str, sql.Composable],
) -> None:
    names, values = list(values), dict(values)
    for at, name in enumerate(last.kept):
        if name in values:
            values[name] = sql.SQL("CASE WHEN {} THEN {} ELSE {} END").format(
                sql.Identifier("s", kept_name(at)), sql.Identifier("t", name), values[name]
            )
    updates = [sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in names if name not in key]
    execute(
        session,
        "INSERT INTO {target} ({columns}) OVERRIDING SYSTEM VALUE SELECT {values} FROM {staged} s {old} "
        "WHERE NOT {deleted} ON CONFLICT ({key}) DO {update}",
        **parts,
        columns=sql.SQL(", ").join(map(sql.Identifier, names)),
        values=sql.SQL(", ").join(values.values()),
        old=sql.SQL("LEFT JOIN {target} t ON {same}").format(**parts) if last.kept else sql.SQL(""),
        key=sql.SQL(", ").join(map(sql.Identifier, key)),
        update=sql.SQL("UPDATE SET {}").format(sql.SQL(", ").join(updates)) if updates else sql.SQL("NOTHING"),
    )
