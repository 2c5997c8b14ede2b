"""What goes wrong with the table that a sink writes to, as errors of ours."""

from __future__ import annotations

from typing import Final

from backfill.errors import (
    BackfillError,
    ConnectionLostError,
    DatabaseSetupError,
    TableError,
    TableLockedError,
    ValueOutOfRangeError,
)
from backfill.upstream.postgres.session.failures import (
    DIVISION_BY_ZERO,
    LIMIT_EXCEEDED,
    LOCKED,
    NO_RIGHTS,
    NO_SUCH_LABEL,
    NOT_IN_ENCODING,
    NOT_THERE,
    RAISED,
    ROWS_HIDDEN,
    TOO_LARGE,
    UNTRANSLATABLE,
    Failure,
    Kind,
)

_ROW_TWICE: Final = "21000"
_READ_ONLY: Final = "25006"
"""What a primary may be for a moment, while it changes places with a standby."""

_NULL: Final = "23502"
_CONSTRAINTS: Final = ("23503", "23505", "23514", "23P01")
_UNFIT: Final = ("22001", "22003", "22007", "22008", "22026", "22P02", "42846")
"""A value is too long, too large or of another form for a column's type; or no cast leads to that type."""

_REFUSED: Final = {
    NO_RIGHTS: (
        ". The role needs SELECT, INSERT, UPDATE and DELETE on that table and on backfill_batches beside it (GRANT … "
        "ON … TO …), and until the latter is there, CREATE on their schema (GRANT USAGE, CREATE ON SCHEMA … TO …)"
    ),
    **dict.fromkeys((DIVISION_BY_ZERO, LIMIT_EXCEEDED, *NOT_THERE), ""),
}
"""What the database refuses, and what to do about it."""

_PLANNED_BEFORE: Final = Kind("plpgsql_param_eval_recfield", "does not match that when preparing the plan")
"""A trigger has a plan of this session from before a column got another type; a new session has none."""

_TOLD_BY_KIND: Final = {
    NO_SUCH_LABEL: (
        "the type of a column of the sink's table lacks a label that the batch has. Run ALTER TYPE … ADD VALUE there, "
        "and start the query again"
    ),
    ROWS_HIDDEN: (
        "a row-level security policy of the sink's table hides rows from the role. Run ALTER ROLE … BYPASSRLS, or "
        "connect as a role to which none applies"
    ),
    Kind("ExecCheckIndexConstraints", "ON CONFLICT does not support deferrable unique constraints"): (
        "beside the unique index that is the key, the sink's table has a DEFERRABLE constraint on the same columns. "
        "Run ALTER TABLE … ADD UNIQUE (…) for these, and start the query again"
    ),
    Kind("ExecFindPartition", "no partition of relation"): (
        "the sink's table has no partition for a row of the batch. Make one, as CREATE TABLE … PARTITION OF … DEFAULT "
        "does for all rows that have none, and start the query again"
    ),
}
_TOLD: Final = {
    LOCKED: (
        "another session holds a lock that keeps the sink's table, or a row of it, from being written, as ALTER TABLE, "
        "CREATE INDEX and UPDATE do until their transaction ends. SELECT pid, mode, relation::regclass, wait_event "
        "FROM pg_locks LEFT JOIN pg_stat_activity USING (pid) WHERE granted AND mode <> 'AccessShareLock' shows who; "
        "with SyncRep its COMMIT, as that of this batch by an earlier driver, waits for a synchronous standby; without "
        "a pid it is one of pg_prepared_xacts"
    ),
    _READ_ONLY: "the server of the sink's table is a standby; point url at the primary",
    NOT_IN_ENCODING: (
        "a text of the batch has the character U+0000, which PostgreSQL cannot hold. Take it away in foreachBatch, as "
        "translate(name, '\\u0000', '') does in Spark's SQL, or leave the column out"
    ),
    UNTRANSLATABLE: (
        "a text of the batch has a character that the encoding of the sink's database lacks. Put the table into "
        "one with the encoding UTF8, or replace such characters in foreachBatch, as with regexp_replace in Spark's SQL"
    ),
    _ROW_TWICE: (
        "a column of the key of the sink's table takes different values of the batch for the same one, by its type or "
        "its collation. Give it those of the source's column, with ALTER TABLE … ALTER COLUMN … TYPE … COLLATE …, and "
        "start the query again"
    ),
    **dict.fromkeys(
        _UNFIT,
        "a column of the sink's table has a type that does not take a value of the batch. Give it the type of the "
        "source's column, with ALTER TABLE … ALTER COLUMN … TYPE …, and start the query again",
    ),
    TOO_LARGE: (
        "a row of the batch does not fit into a page of the temporary table through which it goes, where uuids, times, "
        "labels and the like are texts, of which a page has some 450 at the most; or a value is too long. Leave "
        "columns out of the batch with the stream's option columns"
    ),
    _NULL: (
        "a column of the sink's table takes no null, and a row of the batch has one there, or the batch has no such "
        "column. Run ALTER TABLE … ALTER COLUMN … DROP NOT NULL, or SET DEFAULT … for a column that the batch does not "
        "have, and start the query again"
    ),
    **dict.fromkeys(
        _CONSTRAINTS,
        "a constraint of the sink's table refuses a row of the batch. Drop it, with ALTER TABLE … DROP CONSTRAINT … "
        "(or DROP INDEX), and start the query again. The rows of a batch are written in no order: what is UNIQUE or a "
        "FOREIGN KEY there has to be DEFERRABLE INITIALLY DEFERRED where it is to stay",
    ),
}
_ERRORS: Final[dict[str, type[BackfillError]]] = {
    LOCKED: TableLockedError,
    _READ_ONLY: ConnectionLostError,
    NOT_IN_ENCODING: ValueOutOfRangeError,
    UNTRANSLATABLE: ValueOutOfRangeError,
}
"""The error that these states become, where it is not a TableError."""


def about_target(failure: Failure) -> BackfillError | None:
    """An `About` for the table that a sink writes to. Without it these errors would advise on a stream's source."""
    state, message = failure.state, failure.message
    if state in RAISED:
        return TableError(
            f"a trigger or a function in the database of the sink's table refuses the batch ({state}). Its words may "
            "quote a row, so they are in the server's log alone. Let it take all rows of the source, or drop it, and "
            "start the query again"
        )
    if failure.is_of(_PLANNED_BEFORE):
        return ConnectionLostError(f"{message}: a trigger of the sink's table needs a new session to go by its columns")
    told = next((text for kind, text in _TOLD_BY_KIND.items() if failure.is_of(kind)), _TOLD.get(state))
    if told is not None:
        return _ERRORS.get(state, TableError)(f"{message}: {told}")
    if state in _REFUSED:
        return DatabaseSetupError(f"the database refused a statement on the sink's table: {message}{_REFUSED[state]}")
    return None
