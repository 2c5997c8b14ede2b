"""What goes wrong with PostgreSQL, as errors of ours: definite or transient.

By SQLSTATE (PostgreSQL manual, appendix A), and by what the statement was about: the words are in whatever language the
server speaks (`lc_messages`). A failure to connect has no SQLSTATE, because libpq reports it before there is a session;
those are transient unless the server named, in English, a reason that stays. Nor has what psycopg itself refuses, and
that is no failure to connect.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Final

import adbc_driver_manager
import psycopg

from backfill.errors import (
    BackfillError,
    ConnectionLostError,
    DatabaseSetupError,
    DataLossError,
    SchemaChangedError,
    SlotBusyError,
    SnapshotGoneError,
    TableError,
    TableLockedError,
    ValueOutOfRangeError,
)

_TRANSIENT_CLASSES: Final = ("08", "57P", "40", "53")
_LOCKED: Final = "55P03"
_TRANSIENT_STATES: Final = frozenset({"57014", "58000", "58030"})
_OBJECT_IN_USE: Final = "55006"
_DATA_EXCEPTION: Final = "22"
"""The class of errors whose message quotes the value that was at fault, which may be a row's key."""

_INVALID_PARAMETER: Final = "22023"
_DISK_FULL: Final = "53100"
_LIMIT_EXCEEDED: Final = "53400"
_NOT_IN_ENCODING: Final = "22021"
_DIVISION_BY_ZERO: Final = "22012"
_INVALID_TEXT: Final = "22P02"
_UNFIT: Final = frozenset({"22001", "22003", "22007", "22008", _INVALID_TEXT, "42846"})
"""A value is too long, too large or of another form for a column's type; or no cast leads to that."""

_CONSTRAINTS: Final = frozenset({"23502", "23503", "23505", "23514", "23P01"})
_ROW_TWICE: Final = "21000"
_NO_RIGHTS: Final = "42501"
_NO_COLUMN: Final = "42703"
_READ_ONLY: Final = "25006"
_QUOTED: Final = re.compile(r'["«»„“”「」].*(["«»„“”「」]|$)')
"""From the first quotation mark to the last one, in the languages that PostgreSQL speaks."""

_UNDEFINED: Final = "42704"
_NO_TABLE: Final = "42P01"
_NOT_THERE: Final = frozenset({_NO_TABLE, _NO_COLUMN, _UNDEFINED, "42883"})
"""What a statement names is not there: a table, a column, a type or collation, an operator or function."""

_OF_THE_SETUP: Final = {
    _NO_RIGHTS: (
        "the database refused a statement: {}. The role lacks a right; backfill doctor, with the options of the "
        "stream, may say which one, and the SQL that gives it"
    ),
    _DIVISION_BY_ZERO: (
        "{}: where a condition of the option filter or snapshotFilter divides, write NULLIF(divisor, 0)"
    ),
    _DISK_FULL: "the database's disk is full: {}",
    _LIMIT_EXCEEDED: (
        "a limit of the server's settings was exceeded: {}. Where it is temp_file_limit, let a superuser run ALTER "
        "ROLE … SET temp_file_limit = '100GB', or -1 for none: the changes of one transaction are read at once, "
        "however many they are"
    ),
}
"""What is told of such an error, with the server's words in it."""

_NOT_READY: Final = "55000"
_REFUSED_FOR_GOOD: Final = re.compile(
    r"authentication failed|no password supplied|does not exist|no pg_hba\.conf entry|permission denied|"
    r"invalid (connection option|URI|port|dsn|sslmode|integer value)|is not permitted to log in|missing \"=\"",
    re.IGNORECASE,
)
_WHERE_IT_LASTS: Final = {
    "53200": "; where it is shared memory, the server has no room for more locks, of which each session that reads a "
    "partitioned table takes one for every partition and one for its key's index: let a superuser run ALTER SYSTEM SET "
    "max_locks_per_transaction = 512 and restart the server, or make numPartitions smaller"
}
"""What to do about errors that mostly pass by themselves."""

_ROWS_HIDDEN: Final = ("check_enable_rls", "would be affected by row-level security")
_NO_SUCH_LABEL: Final = ("enum_in", "invalid input value for enum")
_NO_PARTITION: Final = ("ExecFindPartition", "no partition of relation")
"""Errors that share their SQLSTATE with others: the server's routine that raises it, which only psycopg tells, and its
words in English."""

_PRIMARY: Final = b"PG_DIAG_MESSAGE_PRIMARY"
_NO_PARAMETERS: Final = re.compile(r"unsupported startup parameter")


class About(Enum):
    """What a statement cannot do without; errors about anything else are judged by their SQLSTATE alone."""

    ANYTHING = frozenset[str]()
    SNAPSHOT = frozenset({_INVALID_PARAMETER, _UNDEFINED, _NOT_READY})
    """An exported snapshot. Gone, it is no snapshot's name, does not exist (from version 17 on), or has no owner."""

    SLOT = frozenset({_UNDEFINED, _NOT_READY})
    """A slot and its publication. A slot that was dropped does not exist; an invalidated one is not to be read.

    A publication does not exist if it did not when a change was made; up to version 17 that is an error.
    """

    INIT_STATEMENT = _NOT_THERE | {_NO_RIGHTS}
    """Nothing: it is a person's, of which nobody but the server knows what is wrong with it."""

    TARGET = frozenset(
        {
            *(_LOCKED, _READ_ONLY, _NOT_IN_ENCODING, _NO_RIGHTS, _ROW_TWICE, _DIVISION_BY_ZERO, _LIMIT_EXCEEDED),
            *_UNFIT,
            *_CONSTRAINTS,
            *_NOT_THERE,
        }
    )
    """The table that a sink writes to. Of these errors a stream is told what to do about its source, or nothing."""


def translated(error: Exception, about: About = About.ANYTHING) -> BackfillError:
    """The error as one of ours. Only the server's primary message is kept: details may quote rows."""
    state, message = _state(error), _message(error)
    if state is None:
        return _without_state(error, message)
    if state.startswith(_DATA_EXCEPTION) and state != _INVALID_PARAMETER:
        message = _QUOTED.sub('"…"', message)
    message = f"{message} ({state})"
    if state in about.value:
        return _judged(about, state, error, message)
    if _is(_ROWS_HIDDEN, error, message):
        return _rows_hidden(message)
    if _is(_NO_SUCH_LABEL, error, message):
        return _label_gone(message)
    return _with_state(state, message)


def _judged(about: About, state: str, error: Exception, message: str) -> BackfillError:
    match about:
        case About.SNAPSHOT:
            return SnapshotGoneError(message)
        case About.SLOT:
            return _changes_gone(message)
        case About.INIT_STATEMENT:
            return DatabaseSetupError(message)
        case _:
            return _of_the_target(state, error, message)


def _of_the_target(state: str, error: Exception, message: str) -> BackfillError:
    if state == _LOCKED:
        return TableLockedError(
            f"{message}: another session holds a lock that keeps the sink's table, or a row of it, from being written, "
            "as ALTER TABLE, CREATE INDEX and UPDATE do until their transaction ends. SELECT pid, mode, "
            "relation::regclass FROM pg_locks WHERE granted AND mode <> 'AccessShareLock' shows who; without a pid it "
            "is one of pg_prepared_xacts"
        )
    if state == _READ_ONLY:
        # As a primary may be for a moment, while it changes places with another one.
        return ConnectionLostError(f"{message}: the server of the sink's table is a standby; point url at the primary")
    if state == _NOT_IN_ENCODING:
        return ValueOutOfRangeError(
            f"{message}: a text of the batch has the character U+0000, which PostgreSQL cannot hold. Take it away in "
            "foreachBatch, as translate(name, '\\u0000', '') does in Spark's SQL, or leave the column out"
        )
    if _is(_NO_SUCH_LABEL, error, message):
        return TableError(
            f"{message}: the type of a column of the sink's table lacks a label that the batch has. Run ALTER TYPE … "
            "ADD VALUE there, and start the query again"
        )
    if _is(_ROWS_HIDDEN, error, message):
        return TableError(
            f"{message}: a row-level security policy of the sink's table hides rows from the role. Run ALTER ROLE … "
            "BYPASSRLS, or connect as a role to which none applies"
        )
    if state in _UNFIT:
        return TableError(
            f"{message}: a column of the sink's table has a type that does not take a value of the batch. Give it the "
            "type of the source's column, with ALTER TABLE … ALTER COLUMN … TYPE …, and start the query again"
        )
    if state == _ROW_TWICE:
        return TableError(
            f"{message}: a column of the key of the sink's table takes different values of the batch for the same one, "
            "by its type or its collation. Give it those of the source's column, with ALTER TABLE … ALTER COLUMN … "
            "TYPE … COLLATE …, and start the query again"
        )
    if _is(_NO_PARTITION, error, message):
        return TableError(
            f"{message}: the sink's table has no partition for a row of the batch. Make one, as CREATE TABLE … "
            "PARTITION OF … DEFAULT does for all rows that have none, and start the query again"
        )
    if state in _CONSTRAINTS:
        return TableError(
            f"{message}: a constraint of the sink's table refuses a row of the batch. Drop it, with ALTER TABLE … DROP "
            "CONSTRAINT … (or DROP INDEX, or ALTER COLUMN … DROP NOT NULL), and start the query again. The rows of a "
            "batch are written in no order: what is UNIQUE or a FOREIGN KEY there has to be DEFERRABLE INITIALLY "
            "DEFERRED where it is to stay"
        )
    return DatabaseSetupError(f"the database refused a statement on the sink's table: {message}")


def _without_state(error: Exception, message: str) -> BackfillError:
    message = message.removeprefix("connection failed: ")
    if _NO_PARAMETERS.search(message):
        return behind_a_pooler(message)
    if _REFUSED_FOR_GOOD.search(message):
        return DatabaseSetupError(
            f"the database refused the connection: {message}; check the options url, user and password"
        )
    if isinstance(error, psycopg.Error) and not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return DatabaseSetupError(
            f"psycopg could not carry out a statement of the stream: {message}; please report this"
        )
    return ConnectionLostError(f"no connection to the database: {message}; check url, and that the server is up")


def behind_a_pooler(found: str) -> DatabaseSetupError:
    """Something between here and the server keeps back the settings of sessions; the words say how that was found."""
    return DatabaseSetupError(
        f"a connection pooler does not pass on the settings under which values are read: {found}. A stream needs "
        "sessions of its own on the server: put the host and port of PostgreSQL itself into the option url"
    )


def _with_state(state: str, message: str) -> BackfillError:
    if state == _OBJECT_IN_USE:
        return SlotBusyError(f"{message}; another process still reads this slot")
    if state == _LOCKED:
        return TableLockedError(
            f"{message}: another session holds a lock that keeps the table from being read, as ALTER TABLE, VACUUM "
            "FULL or TRUNCATE do until their transaction ends. SELECT pid, relation::regclass FROM pg_locks WHERE "
            "granted AND mode = 'AccessExclusiveLock' shows who; without a pid it is one of pg_prepared_xacts"
        )
    if state == _NOT_IN_ENCODING:
        return ValueOutOfRangeError(
            f"{message}: a text of the table is not UTF-8. A database with the encoding SQL_ASCII takes any bytes for "
            "text; mend them, or leave the column out with the option columns. A change is read with all columns that "
            "are published, and stays in the log as it is. So where it comes from one, or is to come, begin a new "
            "stream with a publication of the columns that are carried: CREATE PUBLICATION p FOR TABLE t (id, …) in "
            "PostgreSQL 15 or newer, and publicationName=p. REPLICA IDENTITY FULL and such a list of columns make "
            "updates and deletes fail: ALTER TABLE … REPLICA IDENTITY DEFAULT first"
        )
    if state in _OF_THE_SETUP:
        return DatabaseSetupError(_OF_THE_SETUP[state].format(message))
    if state in _TRANSIENT_STATES or state.startswith(_TRANSIENT_CLASSES):
        return ConnectionLostError(f"{message}{_WHERE_IT_LASTS.get(state, '')}")
    if state in _NOT_THERE:
        return _not_there(state, message)
    return DatabaseSetupError(f"the database refused a statement: {message}")


def _not_there(state: str, message: str) -> BackfillError:
    if state == _NO_TABLE:
        return TableError(
            f"{message}; was the table dropped or renamed? Where it was renamed, set the option dbtable to its new "
            "name; a stream then goes on where it stopped"
        )
    if state == _NO_COLUMN:
        return SchemaChangedError(
            f"{message}; was the column dropped or renamed? Start the query again, without what is gone in the option "
            "columns"
        )
    return SchemaChangedError(
        f"{message}; was it renamed, moved to another schema or dropped, as by ALTER TYPE or ALTER EXTENSION? Start "
        "the query again, which goes by the names of now"
    )


def _changes_gone(message: str) -> BackfillError:
    return DataLossError(
        f"the changes after the last batch are gone: {message}. Start over with a fresh checkpointLocation and "
        "onExistingState=restart, or start the query again with failOnDataLoss=false to go on without them"
    )


def _rows_hidden(message: str) -> BackfillError:
    return TableError(
        f"{message}: the role would not be shown all rows, but the change log shows them all; a row-level security "
        "policy of the table hides some. Run ALTER ROLE … BYPASSRLS, or connect as a role to which none applies"
    )


def _label_gone(message: str) -> BackfillError:
    return SchemaChangedError(
        f"{message}: a position in the stream's key has a label that its type no longer has. If it was renamed, ALTER "
        "TYPE … RENAME VALUE gives the name back; else start over with a fresh checkpointLocation and "
        "onExistingState=restart"
    )


def _is(known: tuple[str, str], error: Exception, message: str) -> bool:
    routine, words = known
    return getattr(getattr(error, "diag", None), "source_function", None) == routine or words in message


def _state(error: Exception) -> str | None:
    state = getattr(error, "sqlstate", None)
    return str(state) if state else None


def _message(error: Exception) -> str:
    """The first line of what the server says, without its details."""
    primary = getattr(getattr(error, "diag", None), "message_primary", None)
    for name, value in getattr(error, "details", None) or ():
        if name in (_PRIMARY, _PRIMARY.decode()):
            primary = value.decode(errors="replace")
    text = str(primary or error).strip()
    # Without those ADBC has the server's part after words of its own, behind its level, and appends the query.
    found = None if primary else re.search(r"(?:ERROR|FATAL|PANIC):\s*(.*)", text)
    return (found[1] if found else text.splitlines()[0] if text else type(error).__name__).strip()


@contextmanager
def translating(about: About = About.ANYTHING) -> Iterator[None]:
    """Raises driver errors as ours."""
    try:
        yield
    except (psycopg.Error, adbc_driver_manager.Error, OSError) as error:
        # The driver's own text may quote the connection string or rows, and Spark prints the whole chain.
        raise translated(error, about) from None
