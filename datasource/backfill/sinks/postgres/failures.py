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
        "ON … TO …), and until the latter exists, CREATE on their schema (GRANT USAGE, CREATE ON SCHEMA … TO …)"
    ),
    **dict.fromkeys((DIVISION_BY_ZERO, LIMIT_EXCEEDED, *NOT_THERE), ""),
}
"""What the database refuses, and what to do about it."""

_PLANNED_BEFORE: Final = Kind("plpgsql_param_eval_recfield", "does not match that when preparing the plan")
"""A trigger has a plan of this session from before a column got another type; a new session has none."""

_ADVICE_BY_KIND: Final = {
    NO_SUCH_LABEL: (
        "the type of a column of the sink's table lacks a label that the batch has. Run ALTER TYPE … ADD VALUE there, "
        "and start the query again"
    ),
    ROWS_HIDDEN: (
        "a row-level security policy of the sink's table hides rows from the role. Run ALTER ROLE … BYPASSRLS, or "
        "connect as a role to which no policy applies"
    ),
    Kind("ExecCheckIndexConstraints", "ON CONFLICT does not support deferrable unique constraints"): (
        "the sink's table has a DEFERRABLE constraint on the key's columns beside the key's unique index. Run ALTER "
        "TABLE … ADD UNIQUE (…) for these columns, and start the query again"
    ),
    Kind("ExecFindPartition", "no partition of relation"): (
        "the sink's table has no partition for a row of the batch. Make one (CREATE TABLE … PARTITION OF … DEFAULT "
        "makes one for all other rows), and start the query again"
    ),
}
_ADVICE: Final = {
    LOCKED: (
        "another session holds a lock on the sink's table or on a row of it, as ALTER TABLE, CREATE INDEX and UPDATE "
        "do until their transaction ends. SELECT pid, mode, relation::regclass, wait_event FROM pg_locks LEFT JOIN "
        "pg_stat_activity USING (pid) WHERE granted AND mode <> 'AccessShareLock' shows which; with SyncRep its "
        "COMMIT waits for a synchronous standby (it may be this batch's own, by an earlier driver); without a pid it "
        "is one of pg_prepared_xacts"
    ),
    _READ_ONLY: "the server of the sink's table is a standby; point url at the primary",
    NOT_IN_ENCODING: (
        "a text of the batch has the character U+0000, which PostgreSQL cannot hold. Remove it in foreachBatch, as "
        "translate(name, '\\u0000', '') does in Spark's SQL, or leave the column out"
    ),
    UNTRANSLATABLE: (
        "a text of the batch has a character that the encoding of the sink's database lacks. Put the table into "
        "one with the encoding UTF8, or replace such characters in foreachBatch, as with regexp_replace in Spark's SQL"
    ),
    _ROW_TWICE: (
        "different values of the batch are equal in a key column of the sink's table, by its type or its collation. "
        "Give it those of the source's column, with ALTER TABLE … ALTER COLUMN … TYPE … COLLATE …, and start the "
        "query again"
    ),
    **dict.fromkeys(
        _UNFIT,
        "a column of the sink's table has a type that cannot hold a value of the batch. Give it the type of the "
        "source's column, with ALTER TABLE … ALTER COLUMN … TYPE …, and start the query again",
    ),
    TOO_LARGE: (
        "a row of the batch does not fit into a page of the temporary table that the batch is copied into. Uuids, "
        "times, labels and the like are texts there, and a page holds at most some 450 of them; or a value is too "
        "long. Leave columns out of the batch with the stream's option columns"
    ),
    _NULL: (
        "a column of the sink's table is NOT NULL, and a row of the batch has a null there, or the batch does not "
        "have the column. Run ALTER TABLE … ALTER COLUMN … DROP NOT NULL, or SET DEFAULT … for a column that the "
        "batch does not have, and start the query again"
    ),
    **dict.fromkeys(
        _CONSTRAINTS,
        "a constraint of the sink's table refuses a row of the batch. Drop it, with ALTER TABLE … DROP CONSTRAINT … "
        "(or DROP INDEX), and start the query again. To keep a UNIQUE or FOREIGN KEY constraint, make it DEFERRABLE "
        "INITIALLY DEFERRED: the rows of a batch are written in no particular order",
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
            f"a trigger or a function in the database of the sink's table refused the batch ({state}). Its message "
            "may quote a row, so it is only in the server's log. Let it accept all rows of the source, or drop it, "
            "and start the query again"
        )
    if failure.is_of(_PLANNED_BEFORE):
        return ConnectionLostError(f"{message}: a trigger of the sink's table needs a new session to see its columns")
    advice = next((text for kind, text in _ADVICE_BY_KIND.items() if failure.is_of(kind)), _ADVICE.get(state))
    if advice is not None:
        return _ERRORS.get(state, TableError)(f"{message}: {advice}")
    if state in _REFUSED:
        return DatabaseSetupError(f"the database refused a statement on the sink's table: {message}{_REFUSED[state]}")
    return None
